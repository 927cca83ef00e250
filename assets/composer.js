// Where the user writes. A text leaves it only when the server has stored it.

import { ask } from "./api.js";
import { Files } from "./attachments.js";
import { toast } from "./dialog.js";
import { h, icon, iconButton } from "./dom.js";
import { Gauge } from "./gauge.js";
import { keep, kept } from "./kept.js";
import { nonce } from "./live.js";
import { newChat } from "./new_chat.js";
import { Outbox } from "./outbox.js";
import { shortcut } from "./shortcuts.js";
import { said, t } from "./words.js";

const TALLEST_SHARE = 0.4; // of the window's height

export class Composer {
  /**
   * `actions`: send({nonce, text, chat, files, settings, temporary, again}) returns false if it could not be sent;
   * isTemporary() of what is sent now; stop(); reading(reading) shows how full the window is; go(panel, path).
   */
  constructor(panel, actions) {
    this.actions = actions;
    this.chat = null;
    this.writing = false;
    this.outbox = new Outbox();
    this.sending = null; // of the outbox, until the server answers
    this.lastReading = null;
    this.turns = null; // stands for the turns that are shown, once they are known
    this.isLargest = false; // the context is all that the model can have
    this.reach = "open"; // "lost": nothing is heard of Octavo; "closed": it has ended
    this.text = h("textarea", {
      rows: "1",
      placeholder: t("composer.placeholder"),
      "aria-label": t("composer.label"),
      "aria-describedby": "composer-hint",
      dir: "auto",
      autocomplete: "off",
      enterkeyhint: "send",
      oninput: () => this.changed(),
      onkeydown: (event) => this.key(event),
      onpaste: (event) => this.paste(event),
    });
    this.files = new Files(
      () => this.filesChanged(),
      (text, kind = "error") => toast(text, { kind }),
    );
    this.picker = h("input", {
      type: "file",
      multiple: true,
      class: "offscreen",
      tabindex: "-1",
      "aria-label": t("composer.attach"),
    });
    this.picker.onchange = () => {
      this.files.add(this.picker.files);
      this.picker.value = "";
    };
    this.attach = iconButton("clip", t("composer.attach"), () => this.picker.click(), { class: "quiet attach" });
    this.button = h("button", { type: "submit", class: "send" });
    const line = h("div", { class: "line" }, this.attach, this.text, this.button);
    this.box = h("form", { class: "box" }, this.files.element, line, this.picker);
    this.box.onsubmit = (event) => {
      event.preventDefault();
      if (this.writing) actions.stop();
      else this.send();
    };
    this.box.addEventListener("click", (event) => {
      if (event.target === this.box || event.target === line) this.text.focus();
    });
    this.tuneName = h("span", {});
    this.tune = h(
      "button",
      { type: "button", class: "tune", onclick: () => actions.go("presets") },
      icon("presets"),
      this.tuneName,
    );
    this.hint = h("div", { class: "hint", id: "composer-hint", "aria-live": "polite" });
    const keys = iconButton("keyboard", t("shortcuts"), () => shortcut("help"), { class: "quiet keys" });
    panel.append(this.box, h("div", { class: "under" }, this.tune, this.hint, keys));
    this.gauge = new Gauge(
      () => this.draft,
      (answer, draft) => this.measured(answer, draft),
    );
    new ResizeObserver(() => this.fit()).observe(panel); // beside a panel the lines are shorter
    document.addEventListener("octavo-settings", () => this.gauge.soon({ now: true }));
    takeDrops((files) => this.files.add(files));
    this.showOwn(null, false);
    this.say(null);
    this.update();
  }

  focus() {
    this.text.focus({ preventScroll: true });
  }

  /** Turn to another chat (null: a new one): its draft comes back. */
  open(chat) {
    this.chat = chat;
    this.lastReading = this.turns = null;
    this.text.value = sessionStorage.getItem(this.draftKey) ?? "";
    this.files.restore(kept(this.filesKey));
    this.say(null);
    this.fit();
    this.update();
    this.gauge.soon({ now: true });
    document.dispatchEvent(new CustomEvent("octavo-chat", { detail: chat }));
  }

  /** The conversation that is shown: other versions of its turns, or fewer turns, take another room in the window. */
  setTurns(key) {
    const isOther = this.turns !== null && this.turns !== key;
    this.turns = key;
    if (isOther && !this.writing) this.gauge.soon();
  }

  setWriting(writing) {
    if (writing === this.writing) return;
    this.writing = writing;
    this.say(null);
    this.update();
    if (!writing) this.gauge.soon({ now: true });
  }

  /** A model has come or gone, or is on its way. */
  modelChanged({ state, info }) {
    this.isLargest = Boolean(info) && info.longest > 0 && info.context >= info.longest;
    if (state === this.modelState) return;
    this.modelState = state;
    this.gauge.soon({ now: true });
    document.dispatchEvent(new CustomEvent("octavo-model"));
  }

  put(text) {
    this.text.value = text;
    this.changed();
    this.focus();
  }

  get draftKey() {
    return `octavo-draft-${this.chat ?? ""}`;
  }

  get filesKey() {
    return `octavo-files-${this.chat ?? ""}`;
  }

  get draft() {
    return {
      chat: this.chat,
      text: this.text.value,
      files: this.files.ids,
      settings: this.chat === null ? newChat.settings : null,
    };
  }

  changed() {
    this.takeBack();
    keep(this.draftKey, this.text.value);
    this.say(null);
    this.fit();
    this.update();
    this.gauge.soon();
  }

  filesChanged() {
    if (!this.gauge) return; // still being put together
    if (!same(this.outbox.of(this.chat)?.files ?? [], this.files.ids)) this.takeBack();
    const files = this.files.kept;
    keep(this.filesKey, files.length ? JSON.stringify(files) : "");
    this.update();
    this.gauge.soon({ now: true });
  }

  paste(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    this.files.add(files);
  }

  key(event) {
    const plain = !event.shiftKey && !event.altKey && !event.ctrlKey && !event.metaKey && !event.isComposing;
    if (event.key === "ArrowUp" && plain && !this.text.value && !this.writing) {
      event.preventDefault();
      shortcut("edit");
      return;
    }
    if (event.key !== "Enter" || event.shiftKey || event.altKey) return;
    if (event.isComposing || event.keyCode === 229) return; // confirms a candidate of an input method
    event.preventDefault();
    if (this.writing) this.say(t("composer.busy"));
    else this.send();
  }

  send() {
    const text = this.text.value;
    const files = this.files.ids;
    if ((!text.trim() && !files.length) || this.sending) return;
    if (this.files.reading || this.files.lost) {
      this.say(t(this.files.lost ? "said.file_lost" : "composer.reading"), this.files.lost ? "error" : "notice");
      return;
    }
    // The same text for the same chat is the same sending: if an answer was lost, the server knows it by its name.
    const known = this.outbox.of(this.chat);
    const isKnown = known && known.text === text && same(known.files, files);
    const temporary = this.actions.isTemporary();
    this.post(isKnown ? known : { nonce: nonce(), text, chat: this.chat, files, settings: this.draft.settings, temporary });
  }

  /** Send it, or let it wait for the connection. */
  post(sending) {
    this.outbox.put(sending);
    if (this.actions.send(sending)) {
      this.sending = sending;
      sending.again = true; // from now on it may have been stored
      this.outbox.save();
    }
    this.say(null);
    this.update();
  }

  /** What waits goes out, one after the other. */
  postNext() {
    const [next] = this.outbox.items;
    if (next && !this.sending) this.post(next);
  }

  /** The reader changes what was sent here: it is not to be sent any more as it was. */
  takeBack() {
    this.outbox.drop(this.outbox.of(this.chat));
  }

  /** Whether what stands here goes out by itself. */
  get waits() {
    const sending = this.outbox.of(this.chat);
    return sending !== null && sending !== this.sending;
  }

  /** The server has stored it. */
  sent(message) {
    const { sending } = this;
    if (sending?.nonce !== message.nonce) return false;
    const { chat, text, files } = sending;
    this.sending = null;
    this.outbox.drop(sending);
    sessionStorage.removeItem(`octavo-draft-${chat ?? ""}`);
    sessionStorage.removeItem(`octavo-files-${chat ?? ""}`);
    if (chat === null) newChat.settings = null;
    if (this.chat === chat && this.text.value === text) this.text.value = "";
    if (this.chat === chat && same(this.files.ids, files)) this.files.restore([]);
    this.say(null);
    this.fit();
    this.update();
    this.postNext();
    return true;
  }

  refused(message) {
    const sending = this.sending?.nonce === message.nonce ? this.sending : null;
    const words = said(message.code, message.values, [message.message, message.remedy].filter(Boolean).join(" "));
    if (sending) {
      this.sending = null;
      this.outbox.drop(sending);
      this.postNext();
    }
    if (sending && sending.chat !== this.chat) {
      toast(words, { kind: "error" }); // its text is still there in its chat
      this.update();
      return;
    }
    const isFull = message.code === "too_long" || message.code === "context_full";
    this.say(isFull ? this.full(words) : words, "error", this.waysOut(message.code));
    this.update();
    if (message.code === "file_lost") this.gauge.soon({ now: true });
  }

  /** Octavo was "closed", is "lost" (nothing is heard of it), or is there again ("open"). */
  setReach(reach) {
    if (reach === this.reach) return;
    this.reach = reach;
    this.say(null);
    this.update();
  }

  connectionLost() {
    this.sending = null; // whether it has been stored is not known: it goes out again under its name
    if (this.waits) this.say(null);
    this.update();
  }

  connectionBack() {
    this.setReach("open");
    this.postNext();
    if (!this.lastReading) this.gauge.soon({ now: true });
  }

  // How full the window is

  measured(answer, draft) {
    if (draft.chat !== this.chat) return;
    this.files.markLost(answer.lost.filter((id) => this.files.ids.includes(id)));
    this.showOwn(answer.changed ? t("composer.changed", { name: answer.preset }) : answer.preset, answer.own);
    this.actions.reading(answer.reading);
    this.lastReading = answer.reading && { ...answer.reading, overflow: answer.overflow };
    this.update();
    if (this.hint.classList.contains("idle") || this.hint.dataset.about === "window") this.say(null);
  }

  /** What will happen to the oldest turns, said before anything is sent. */
  windowWords() {
    const reading = this.lastReading;
    if (!reading || this.writing || !(this.text.value.trim() || this.files.ids.length)) return null;
    const { used, limit, left_out: n, too_long: tooLong, overflow } = reading;
    if (tooLong) return [this.full(t("said.too_long", { used, limit })), "error", this.waysOut("too_long")];
    if (n > 0 && overflow === "stop") return [this.full(t("said.context_full", { limit })), "error", this.waysOut("context_full")];
    if (n > 0) return [t("composer.leaves", { n, limit }), "notice", []];
    return null;
  }

  /** What is said of a full window, and that none could be larger where that is so. */
  full(words) {
    return this.isLargest ? `${words} ${t("composer.largest")}` : words;
  }

  waysOut(code) {
    const larger = { label: t("composer.larger"), run: () => this.actions.go("settings", "model.context_length") };
    const room = this.isLargest ? [] : [larger];
    if (code === "too_long") return room;
    if (code === "context_full") return [{ label: t("composer.drop"), run: () => this.dropOldest() }, ...room];
    return [];
  }

  async dropOldest() {
    const { chat } = this;
    try {
      const { settings } =
        chat === null ? { settings: newChat.settings } : await ask(`/api/ui/presets?${new URLSearchParams({ chat })}`);
      const changed = { ...settings, options: {} };
      if (chat === null) newChat.settings = changed;
      else await ask("/api/ui/presets/chat", { method: "POST", body: { chat, settings: changed } });
      this.say(null);
      document.dispatchEvent(new CustomEvent("octavo-settings"));
    } catch (error) {
      this.say(error.message, "error");
    }
    this.focus();
  }

  showOwn(preset, own) {
    this.tuneName.textContent = preset ?? t(own ? "composer.tuned" : "composer.tune");
    this.tune.classList.toggle("own", Boolean(preset) || own);
    this.tune.title = t("composer.tune.about");
  }

  /** A line under the box; null: what is to be said of the window, else the usual hint. */
  say(text, kind = "calm", actions = []) {
    const isClosed = this.reach === "closed";
    if (text === null && this.waits) text = t(isClosed ? "composer.waits.closed" : "composer.waits");
    else if (text === null && this.reach !== "open") [text, kind] = [t(isClosed ? "composer.closed" : "composer.offline"), "error"];
    const window = text === null ? this.windowWords() : null;
    const [words, how, ways] = window ?? [text ?? t("composer.hint"), kind, actions];
    this.hint.className = `hint ${how}`;
    this.hint.classList.toggle("idle", text === null && !window);
    if (window) this.hint.dataset.about = "window";
    else delete this.hint.dataset.about;
    const buttons = ways.map(({ label, run }) => h("button", { type: "button", class: "link", onclick: run }, label));
    if (this.hint.textContent !== [words, ...ways.map(({ label }) => label)].join(""))
      this.hint.replaceChildren(h("span", {}, words), ...buttons);
  }

  fit() {
    const { box, text } = this;
    box.style.minHeight = `${box.offsetHeight}px`; // or the conversation above would grow for a moment and lose its end
    text.style.height = "auto";
    text.style.height = `${Math.min(text.scrollHeight, innerHeight * TALLEST_SHARE)}px`;
    box.style.minHeight = "";
  }

  update() {
    const label = t(this.writing ? "composer.stop" : "composer.send");
    if (this.button.dataset.shows !== label) {
      this.button.replaceChildren(icon(this.writing ? "stop" : "send"));
      this.button.dataset.shows = label;
      this.button.setAttribute("aria-label", label);
      this.button.title = this.writing ? `${label} (Esc)` : label;
    }
    this.button.classList.toggle("stops", this.writing);
    const empty = !this.text.value.trim() && !this.files.items.length;
    const tooLong = !empty && Boolean(this.lastReading?.too_long);
    const idle = !this.writing && (empty || tooLong || this.sending !== null);
    if (!this.writing) this.button.title = tooLong ? this.windowWords()?.[0] ?? label : label;
    if (idle && document.activeElement === this.button) this.focus(); // a disabled button would lose the keyboard
    this.button.disabled = idle;
  }
}

/** A file that is dropped anywhere on the conversation is attached; nowhere does it replace the page. */
function takeDrops(take) {
  document.getElementById("octavo-main").dataset.drop = t("files.drop");
  const holdsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  let inside = 0;
  const mark = (change) => {
    inside = Math.max(0, inside + change);
    document.body.classList.toggle("dropping", inside > 0);
  };
  addEventListener("dragenter", (event) => holdsFiles(event) && mark(1));
  addEventListener("dragleave", (event) => holdsFiles(event) && mark(-1));
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
  });
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    mark(-Infinity);
    take(event.dataTransfer.files);
  });
}

function same(first, second) {
  return first.length === second.length && first.every((value, at) => value === second[at]);
}
