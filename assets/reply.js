// A reply that grows block by block, with what is to be said about it and done with it.

import { copyText, h, icon, iconButton, announce, setHTML } from "./dom.js";
import { Editor } from "./editor.js";
import { Versions } from "./versions.js";
import { duration, has, said, speed, t } from "./words.js";

/** A growing text: finished blocks stay, the last one changes. */
class Blocks {
  constructor(element) {
    this.element = element;
    this.open = ""; // HTML of the unfinished end
    this.finished = 0;
  }

  /** All at once. */
  fill(blocks) {
    this.element.replaceChildren();
    for (const html of blocks) this.put(this.element.children.length, html);
    this.finished = blocks.length;
    this.open = "";
  }

  /** [first, keep, rest, ...more] as the server's Position makes it. */
  patch([first, keep, rest, ...more]) {
    const blocks = [this.open.slice(0, keep) + rest, ...more];
    blocks.forEach((html, at) => this.put(first + at, html));
    this.finished = first + blocks.length - 1;
    this.open = blocks[blocks.length - 1];
    const length = this.finished + (this.open ? 1 : 0);
    while (this.element.children.length > length) this.element.lastElementChild.remove();
  }

  put(at, html) {
    let block = this.element.children[at];
    if (!block) {
      if (!html) return;
      block = h("div", { class: "block" });
      this.element.append(block);
    }
    setHTML(block, html);
    for (const head of block.querySelectorAll(".code-head:not(:has([data-own]))")) {
      head.append(iconButton("copy", t("turn.code"), () => copyCode(head), { "data-own": "" }));
    }
  }
}

async function copyCode(head) {
  await copyText(head.parentElement.querySelector("code").textContent);
  confirmCopy(head.querySelector("button"));
}

function confirmCopy(button) {
  button.replaceChildren(icon("check"));
  announce(t("turn.copied"));
  setTimeout(() => button.replaceChildren(icon("copy")), 1500);
}

/**
 * A reply. `actions`: source(id), a promise of its Markdown; retry(id), continue(), version(id, step), branch(id),
 * editReply(id, text), remove(id).
 */
export class ReplyTurn {
  constructor(turn, actions) {
    this.id = turn.id;
    this.actions = actions;
    this.status = "streaming";
    this.thoughtFrom = null;
    const thoughtText = h("div", { class: "blocks" });
    const answerText = h("div", { class: "blocks" });
    this.thoughtLabel = h("span", { class: "label" });
    this.thoughtBox = h(
      "details",
      { class: "thought", hidden: true },
      h("summary", {}, icon("chevron"), this.thoughtLabel),
      thoughtText,
    );
    this.thought = new Blocks(thoughtText);
    this.answer = new Blocks(answerText);
    this.waiting = h("div", { class: "waiting", hidden: true });
    this.notes = h("div", { class: "notes" });
    this.copyButton = iconButton("copy", t("turn.copy"), () => this.copy());
    this.retryButton = iconButton("retry", t("turn.retry"), () => actions.retry(this.id));
    this.continueButton = iconButton("onward", t("turn.continue"), () => this.goOn(), { class: "quiet continue" });
    this.editButton = iconButton("pencil", t("turn.edit"), () => this.edit());
    const branch = iconButton("branch", t("turn.branch"), () => actions.branch(this.id));
    this.removeButton = iconButton("bin", t("turn.remove.reply"), () => actions.remove(this.id));
    this.versions = new Versions((step) => actions.version(this.id, step));
    this.figures = h("div", { class: "figures", role: "note", "aria-label": t("figures") });
    this.tools = h("div", { class: "tools" }, this.copyButton, this.retryButton, this.continueButton, this.editButton, branch, this.removeButton);
    this.footer = h("footer", {}, this.versions.element, this.figures, this.tools);
    this.element = h(
      "article",
      { class: "turn reply", "data-id": turn.id, "aria-label": t("turn.model"), tabindex: "-1" },
      this.thoughtBox,
      this.waiting,
      (this.text = answerText),
      this.notes,
      this.footer,
    );
    if (turn.thought) this.thought.fill(turn.thought);
    if (turn.answer) this.answer.fill(turn.answer);
    this.about(turn);
  }

  get live() {
    return this.status === "streaming";
  }

  patch(message) {
    if (message.r) this.thought.patch(message.r);
    if (message.a) {
      this.answer.patch(message.a);
      if (this.waiting.firstChild) this.wait(null);
    }
    this.element.classList.toggle("blank", this.answer.element.childElementCount === 0);
  }

  /** What stands around the text; returns in words how the reply has ended, where it has just now. */
  about(about) {
    const ended = this.live && about.status !== "streaming";
    this.told = about;
    this.status = about.status;
    this.stats = about.stats;
    this.element.classList.toggle("live", this.live);
    this.element.classList.toggle("blank", this.answer.element.childElementCount === 0);
    this.element.setAttribute("aria-busy", String(this.live));
    this.wait(this.live ? about.progress : null);
    this.think(about.thinking);
    this.note(about);
    if (about.versions) this.place(about);
    const blank = this.answer.element.childElementCount === 0;
    this.tools.hidden = this.live;
    this.footer.hidden = this.live && this.versions.element.hidden;
    this.copyButton.hidden = this.editButton.hidden = blank;
    this.continueButton.hidden = blank && this.thoughtBox.hidden;
    this.figures.replaceChildren(...(this.live ? [] : figures(about)));
    return ended ? outcome(about) : null;
  }

  /**
   * Nobody is heard of who could go on writing, as `words` say: what has come stays, until the server says how it is.
   * Returns whether that ended something.
   */
  freeze(words) {
    const { told } = this;
    if (!this.live) return false;
    const thinking = told.thinking && { over: true, seconds: told.thinking.over ? told.thinking.seconds : null };
    this.about({ ...told, status: "stopped", error: { text: words }, progress: null, thinking });
    return true;
  }

  place({ version, versions }) {
    this.versions.show(version, versions);
    this.removeButton.title = t(versions > 1 ? "turn.remove.version" : "turn.remove.reply");
    this.removeButton.setAttribute("aria-label", this.removeButton.title);
  }

  wait(progress) {
    const blank = this.live && this.answer.element.childElementCount === 0 && this.thoughtBox.hidden;
    this.waiting.hidden = !(blank || progress);
    if (this.waiting.hidden) {
      this.waiting.replaceChildren();
      return;
    }
    const parts = [h("span", { class: "dots" }, h("i"), h("i"), h("i"))];
    if (progress?.state === "reading" && progress.total > 0) {
      const share = progress.done / progress.total;
      const cached = progress.cached ? ` · ${t("wait.cached", { n: progress.cached })}` : "";
      parts.push(h("span", {}, `${t("wait.reading")} · ${t("wait.tokens", progress)}${cached}`));
      parts.push(meter(share, progress.cached / progress.total));
    } else if (progress?.state === "loading") {
      parts.push(h("span", {}, t("wait.loading")));
      if (progress.total > 0) parts.push(meter(progress.done / progress.total));
    } else if (progress?.state === "waiting") {
      const place = progress.place > 0 ? ` · ${t("wait.place", { n: progress.place })}` : "";
      parts.push(h("span", {}, t("wait.waiting") + place));
    }
    this.waiting.replaceChildren(...parts);
  }

  think(thinking) {
    this.thoughtBox.hidden = !thinking;
    clearInterval(this.thoughtTimer);
    if (!thinking) return;
    this.thoughtBox.classList.toggle("now", !thinking.over);
    if (thinking.over) {
      const label = thinking.seconds === null ? t("thought.done") : t("thought.seconds", { s: duration(thinking.seconds) });
      this.thoughtLabel.textContent = label;
      return;
    }
    const from = performance.now() - thinking.seconds * 1000;
    const show = () => {
      const seconds = Math.floor((performance.now() - from) / 1000);
      this.thoughtLabel.textContent = seconds > 0 ? `${t("thought.now")} · ${duration(seconds)}` : t("thought.now");
    };
    show();
    this.thoughtTimer = setInterval(show, 1000);
  }

  note(about) {
    const notes = about.notices.map((remark) => h("p", { class: "notice" }, said(remark.code, remark.values, remark.text)));
    const blank = this.answer.element.childElementCount === 0;
    if (about.status === "failed") {
      const retry = h("button", { type: "button", class: "plain", onclick: () => this.actions.retry(this.id) }, t("turn.retry"));
      const load = about.error?.code === "no_model" ? this.loadButton() : "";
      notes.push(h("div", { class: "failure", role: "alert" }, h("p", {}, why(about)), load, retry));
    } else if (about.status === "stopped" && about.error) {
      notes.push(h("p", { class: "notice" }, why(about)));
    } else if (about.status === "stopped" && blank) {
      notes.push(h("p", { class: "notice" }, t("turn.stopped")));
    }
    this.notes.replaceChildren(...notes);
  }

  /** Loads the model that is missing and then asks for the reply again. */
  loadButton() {
    const id = this.actions.model();
    const button = h("button", { type: "button", class: "plain" }, id ? t("turn.load", { id }) : t("turn.load.usual"));
    button.onclick = async () => {
      button.disabled = true;
      if (await this.actions.load()) this.actions.retry(this.id);
      else button.disabled = false;
    };
    return button;
  }

  /** The button goes while the reply is written: the keyboard stays in this turn. */
  goOn() {
    this.actions.continue();
    this.element.focus({ preventScroll: true });
  }

  /** Another version of the reply, written by the reader. */
  async edit() {
    if (this.editor) return;
    const source = await this.actions.source(this.id);
    if (this.editor) return;
    this.editor = new Editor(source, {
      yes: t("turn.save"),
      about: t("turn.edit.about"),
      send: (text) => this.actions.editReply(this.id, text),
      end: () => {
        this.editor = null;
        this.element.classList.remove("editing");
        this.editButton.focus({ preventScroll: true });
      },
    });
    this.element.classList.add("editing");
    this.text.after(this.editor.element);
    this.editor.focus();
  }

  async copy() {
    await copyText(await this.actions.source(this.id));
    confirmCopy(this.copyButton);
  }
}

function meter(share, cached = 0) {
  const percent = (value) => `${Math.max(0, Math.min(100, value * 100))}%`;
  const bar = h("span", { class: "meter", "aria-hidden": "true" }, h("span", { class: "done" }), h("span", { class: "was" }));
  bar.firstChild.style.width = percent(share);
  bar.lastChild.style.width = percent(cached);
  return bar;
}

/** Why a reply failed, or what cut it off. */
function why({ error }) {
  return said(error?.code, {}, error?.text || t("turn.failed"));
}

/** How a reply has ended, for who does not see it. */
function outcome({ status, stats, error }) {
  if (status === "failed") return t("turn.failed"); // the reason is an alert of its own
  if (status === "stopped") return error ? why({ error }) : t("turn.halted");
  return t(stats?.reason === "length" ? "turn.limit" : "turn.finished");
}

function figures({ stats, status, error }) {
  const isCut = status === "stopped" && Boolean(error);
  if (!stats) return status === "stopped" ? [h("span", {}, t(isCut ? "reason.interrupted" : "reason.aborted"))] : [];
  const parts = [];
  if (stats.speed > 0) parts.push(t("figures.speed", { n: speed(stats.speed) }));
  if (stats.tokens > 0) parts.push(t("figures.first", { s: duration(stats.first) }));
  const prompt = { n: stats.prompt, m: stats.cached };
  parts.push(stats.cached ? t("figures.cached", prompt) : t("figures.prompt", prompt));
  parts.push(t("figures.tokens", { n: stats.tokens }));
  if (stats.drafted) {
    const guesses = { m: stats.drafted, n: Math.round((100 * stats.accepted) / stats.drafted), x: (stats.speedup ?? 1).toFixed(1) };
    parts.push(stats.speedup > 1.05 ? t("figures.faster", guesses) : t("figures.accepted", guesses));
  }
  if (stats.left_out) parts.push(t("figures.left", { n: stats.left_out }));
  const reason = isCut ? "interrupted" : stats.reason;
  parts.push(has(`reason.${reason}`) ? t(`reason.${reason}`) : reason);
  return parts.map((text) => h("span", {}, text));
}
