// The empty conversation: the state of the model if there is none yet, else three ways to begin.

import { h } from "./dom.js";
import { bytes, duration, has, t, worded } from "./words.js";

const EXAMPLES = ["example.1", "example.2", "example.3"];

export class Welcome {
  /** `actions`: put(text) fills the composer; load(), cancel(); get(id, quantization) fetches and loads a model;
   * starter() loads the small one, wake() the one that rests; models() opens their panel. */
  constructor(element, actions) {
    this.element = element;
    this.actions = actions;
    this.began = null; // {stage, done, at}: for the time still needed
    this.state = null;
    this.about = h("div", { class: "machine", hidden: true });
    this.fetching = h("div", { class: "fetching", role: "status", hidden: true });
    this.buttons = []; // of the models that are suggested
  }

  /** What the machine has, and which models would fit: shown as long as there is no model. */
  machine({ processor, cores, total, free, gpus, models, offline }) {
    const memory = t("machine.memory", { free: bytes(free), total: bytes(total) });
    const lines = [t("machine.cpu", { processor, n: cores }), memory];
    for (const gpu of gpus) lines.push(t("machine.gpu", { name: gpu.name, free: bytes(gpu.free), total: bytes(gpu.total) }));
    if (gpus.length === 0) lines.push(t("machine.nogpu"));
    this.buttons = models.map((model) => this.suggestion(model));
    this.about.replaceChildren(
      h("h2", {}, t("machine")),
      h("p", { class: "hardware" }, lines.join(" · ")),
      ...(models.length ? [h("h2", {}, t("machine.models")), offline ? h("p", { class: "size" }, t("models.offline")) : "", h("ul", {}, ...this.buttons.map(({ element }) => element))] : []),
      h("p", {}, h("button", { type: "button", class: "link", onclick: () => this.actions.models() }, t("load.choose"))),
    );
    this.about.hidden = false;
    this.offline = offline;
    for (const { get } of this.buttons) get.disabled = offline;
    if (this.news) this.models(this.news);
  }

  suggestion({ id, download, size, quantization }) {
    const words = quantization === "none" ? t("machine.size", { size: bytes(download) }) : t("machine.int4", { size: bytes(download), memory: bytes(size) });
    const get = h(
      "button",
      { type: "button", class: "plain", "aria-label": t("machine.get.label", { id }), onclick: () => this.actions.get(id, quantization === "none" ? null : quantization) },
      t("machine.get"),
    );
    const [owner, name] = id.split("/");
    const element = h(
      "li",
      {},
      h("div", {}, h("p", { class: "model" }, name, h("span", { class: "owner" }, owner)), h("p", { class: "size tabular" }, words)),
      get,
    );
    return { id, element, get };
  }

  /** News of downloads: what was asked for from here is shown here too. */
  models(news) {
    const wasResting = this.news?.resting ?? false;
    this.news = news;
    if (news.resting !== wasResting && this.state === "empty") this.empty(this.drawnModel);
    const running = news.downloads.filter((job) => job.load_when_done && job.state !== "done");
    const ids = new Set(running.filter(({ state }) => state === "running" || state === "waiting").map((job) => job.model_id));
    for (const { id, get } of this.buttons) get.disabled = this.offline || ids.has(id);
    this.fetching.hidden = running.length === 0;
    this.fetching.replaceChildren(
      ...running.slice(0, 2).map((job) => {
        if (job.state === "failed") return h("p", { class: "trouble" }, worded(job.error));
        const bar = h("span", { class: "done" });
        bar.style.width = `${job.total ? (job.done / job.total) * 100 : 0}%`;
        const words = [job.model_id, job.total ? `${bytes(job.done)} / ${bytes(job.total)}` : null, job.seconds_left ? t("load.left", { s: duration(Math.ceil(job.seconds_left)) }) : null].filter(Boolean).join(" · ");
        return h("p", { class: "tabular" }, h("span", { class: "meter large", "aria-hidden": "true" }, bar), words);
      }),
    );
  }

  model(model) {
    const drawn = model.state === "loading" && this.state === "loading";
    if (model.state !== this.state) this.began = null;
    this.state = model.state;
    if (model.state === "loading") this.loading(model, drawn);
    else if (model.state === "failed") this.failed(model);
    else if (model.state === "ready") this.ready(model);
    else if (model.state === "empty") this.empty(model);
    else this.element.replaceChildren();
  }

  ready({ id }) {
    const examples = EXAMPLES.map((key) =>
      h("button", { type: "button", class: "example", onclick: () => this.actions.put(t(key)) }, t(key)),
    );
    this.element.replaceChildren(
      h("h1", {}, t("empty.title")),
      h("p", {}, t("empty.text")),
      h("div", { class: "examples" }, ...examples),
      ...(id === "starter" ? [this.small()] : []),
    );
  }

  /** What to expect of the starter, and where there is more. */
  small() {
    const get = h("button", { type: "button", class: "link", onclick: () => this.actions.models() }, t("starter.better"));
    return h("p", { class: "small" }, t("starter.small"), " ", get);
  }

  loading({ id, progress }, drawn) {
    if (!drawn) {
      this.bar = h("span", { class: "done" });
      this.box = h("span", { class: "meter large", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100", "aria-label": t("load.title") }, this.bar);
      this.stage = h("p", { class: "stage" });
      this.detail = h("p", { class: "detail tabular" });
      this.element.replaceChildren(
        h("h1", {}, t("load.title")),
        h("p", { class: "model-id" }, nameOf(id)),
        this.box,
        h("div", { class: "load-line" }, this.stage, this.detail),
        h("button", { type: "button", class: "plain", onclick: this.actions.cancel }, t("load.cancel")),
        h("p", { class: "meanwhile" }, t("load.meanwhile")),
        this.about,
      );
    }
    const { stage = "starting", done = 0, total = 0, source = "" } = progress ?? {};
    const key = `stage.${stage}`;
    this.stage.textContent = (has(key) ? t(key) : stage) + (source ? ` · ${source}` : "");
    const share = total > 0 ? Math.min(1, done / total) : null;
    this.box.classList.toggle("unknown", share === null);
    this.bar.style.width = share === null ? "" : `${share * 100}%`;
    if (share === null) this.box.removeAttribute("aria-valuenow");
    else this.box.setAttribute("aria-valuenow", String(Math.round(share * 100)));
    this.detail.textContent = share === null ? "" : this.amount(stage, done, total);
  }

  /** "41 MiB of 89 MiB · about 12 s left" for sizes, "3 / 30" for counts. */
  amount(stage, done, total) {
    const size = total > 100_000;
    const parts = [size ? `${bytes(done)} / ${bytes(total)}` : `${done} / ${total}`];
    const now = performance.now();
    if (this.began?.stage !== stage) this.began = { stage, done, at: now };
    const seconds = (now - this.began.at) / 1000;
    const rate = (done - this.began.done) / seconds;
    if (seconds > 1.5 && rate > 0 && done < total) parts.push(t("load.left", { s: duration(Math.ceil((total - done) / rate)) }));
    return parts.join(" · ");
  }

  failed(model) {
    this.trouble(t("load.failed"), h("p", { class: "trouble" }, worded(model.error) ?? ""), [t("load.retry"), this.actions.load]);
  }

  empty(model) {
    this.drawnModel = model;
    const id = model.configured;
    if (this.news?.resting) {
      const words = h("p", {}, t("models.now.resting", { id: nameOf(this.news.id) }));
      this.trouble(t("load.resting"), words, [t("load.again"), this.actions.wake]);
      return;
    }
    const text = h("p", {}, id ? t("load.none.text", { id: nameOf(id) }) : t("load.none.bare"));
    this.trouble(t("load.none"), text, id ? [t("load.again"), this.actions.load] : [t("load.starter"), this.actions.starter]);
  }

  trouble(title, text, [label, run]) {
    this.element.replaceChildren(
      h("h1", {}, title),
      text,
      h("button", { type: "button", class: "primary", onclick: run }, label),
      this.fetching,
      this.about,
    );
  }
}

function nameOf(id) {
  return id === "starter" ? t("model.starter") : (id ?? "");
}
