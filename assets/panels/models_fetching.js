// The downloads: how far each is, pausing, going on, calling off.

import { h, iconButton } from "../dom.js";
import { bytes, duration, t, worded } from "../words.js";
import { Bar, facts, modelName, section } from "./models_parts.js";

export class Fetching {
  constructor(actions) {
    this.actions = actions;
    this.rows = new Map(); // job's id: Row
    this.list = h("ul", { class: "rows" });
    this.element = section(t("models.downloads"), this.list);
    this.element.hidden = true;
  }

  update(jobs) {
    const there = new Set(jobs.map((job) => job.id));
    for (const [id, row] of this.rows) {
      if (there.has(id)) continue;
      row.element.remove();
      this.rows.delete(id);
    }
    for (const job of jobs) {
      if (!this.rows.has(job.id)) {
        const row = new Row(job.id, this.actions);
        this.rows.set(job.id, row);
        this.list.append(row.element);
      }
      this.rows.get(job.id).update(job);
    }
    this.element.hidden = jobs.length === 0;
  }
}

class Row {
  constructor(id, actions) {
    this.actions = actions;
    const act = (what) => () => actions.tell(`/downloads/${id}/${what}`);
    this.name = h("p", { class: "model-name" });
    this.bar = new Bar(t("models.downloads"));
    this.about = h("div", {});
    this.error = h("p", { class: "trouble", role: "alert", hidden: true });
    this.help = h("div", { class: "help", hidden: true });
    this.pause = h("button", { type: "button", class: "plain", onclick: act("pause") }, t("models.pause"));
    this.resume = h("button", { type: "button", class: "plain", onclick: act("resume") });
    this.off = iconButton("close", t("models.calloff"), () => this.callOff(act("remove")));
    this.element = h(
      "li",
      { class: "row" },
      h("div", { class: "line" }, h("div", { class: "what" }, this.name, this.about), this.pause, this.resume, this.off),
      this.bar.element,
      this.error,
      this.help,
    );
  }

  update(job) {
    this.job = job;
    const { state, done, total, speed } = job;
    this.element.dataset.state = state;
    this.name.replaceChildren(...modelName(job.model_id));
    this.bar.element.hidden = state === "done" || state === "failed";
    this.bar.set(total ? done / total : state === "running" ? null : 0);
    this.about.replaceChildren(this.words(job));
    this.pause.hidden = state !== "running" && state !== "waiting";
    this.resume.hidden = state !== "paused" && state !== "failed";
    this.resume.textContent = state === "failed" ? t("models.again") : t("models.resume");
    const label = state === "done" ? t("models.dismiss") : t("models.calloff");
    this.off.title = label;
    this.off.setAttribute("aria-label", `${label}: ${job.model_id}`);
    this.pause.setAttribute("aria-label", `${t("models.pause")}: ${job.model_id}`);
    this.resume.setAttribute("aria-label", `${this.resume.textContent}: ${job.model_id}`);
    this.error.hidden = state !== "failed";
    this.error.textContent = worded(job.error) ?? "";
    const isDenied = Boolean(job.reason) && job.reason !== "offline";
    this.help.hidden = !isDenied;
    if (isDenied && this.help.childElementCount === 0) this.help.append(...accessHelp(job.model_id, this.actions));
  }

  words({ state, done, total, speed, seconds_left: left, stage }) {
    const sizes = { done: bytes(done), total: bytes(total) };
    if (state === "waiting") return facts(t("models.waiting"));
    if (state === "paused") return facts(total ? t("models.paused", sizes) : t("models.pause"));
    if (state === "done") return facts(t("models.complete"), bytes(total));
    if (state === "failed") return facts(total ? t("models.done", sizes) : null);
    if (stage === "checking") return facts(t("models.checking"));
    return facts(
      total ? t("models.done", sizes) : t("stage.finding"),
      speed > 0 ? t("models.speed", { size: bytes(speed) }) : null,
      left ? t("models.left", { s: duration(Math.ceil(left)) }) : null,
    );
  }

  async callOff(remove) {
    const { state, model_id: id, done } = this.job;
    const isSafe = state === "done" || done === 0;
    const text = t("models.calloff.text", { id, size: bytes(done) });
    const yes = t("models.calloff.yes");
    if (isSafe || (await this.actions.page.confirm({ title: t("models.calloff.title"), text, yes, danger: true }))) await remove();
  }
}

/** What helps with a model that is not handed out: its page, and the token. */
export function accessHelp(id, actions) {
  const repository = id.split(":")[0];
  const page = `${actions.hub}/${repository}`;
  return [
    h("a", { class: "plain", href: page, target: "_blank", rel: "noreferrer noopener" }, t("models.terms")),
    h("button", { type: "button", class: "plain", onclick: () => actions.goTo("token") }, t("models.token.enter")),
  ];
}
