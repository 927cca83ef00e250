// The empty conversation: the state of the model if there is none yet, else three ways to begin.

import { h } from "./dom.js";
import { bytes, duration, has, t } from "./words.js";

const EXAMPLES = ["example.1", "example.2", "example.3"];

export class Welcome {
  /** `actions`: put(text) fills the composer, load(), cancel(). */
  constructor(element, actions) {
    this.element = element;
    this.actions = actions;
    this.began = null; // {stage, done, at}: for the time still needed
    this.state = null;
    this.about = h("dl", { class: "machine", hidden: true });
  }

  /** What the machine has, and which models would fit: shown as long as there is no model. */
  machine({ processor, cores, total, free, gpus, models }) {
    const memory = t("machine.memory", { free: bytes(free), total: bytes(total) });
    const lines = [t("machine.cpu", { processor, n: cores }), memory];
    for (const gpu of gpus) lines.push(t("machine.gpu", { name: gpu.name, free: bytes(gpu.free), total: bytes(gpu.total) }));
    if (gpus.length === 0) lines.push(t("machine.nogpu"));
    const parts = [h("dt", {}, t("machine")), h("dd", {}, lines.join(" · "))];
    if (models.length) {
      const names = models.map((model) => h("span", { class: "model" }, h("code", {}, model.id), ` ${bytes(model.size)}`));
      parts.push(h("dt", {}, t("machine.models")), h("dd", {}, ...names, h("span", { class: "how" }, t("machine.how"))));
    }
    this.about.replaceChildren(...parts);
    this.about.hidden = false;
  }

  model(model) {
    const drawn = model.state === "loading" && this.state === "loading";
    if (model.state !== this.state) this.began = null;
    this.state = model.state;
    if (model.state === "loading") this.loading(model, drawn);
    else if (model.state === "failed") this.failed(model);
    else if (model.state === "ready") this.ready();
    else if (model.state === "empty") this.empty(model);
    else this.element.replaceChildren();
  }

  ready() {
    const examples = EXAMPLES.map((key) =>
      h("button", { type: "button", class: "example", onclick: () => this.actions.put(t(key)) }, t(key)),
    );
    this.element.replaceChildren(
      h("h1", {}, t("empty.title")),
      h("p", {}, t("empty.text")),
      h("div", { class: "examples" }, ...examples),
    );
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
    this.trouble(t("load.failed"), model.error ?? "", t("load.retry"));
  }

  empty(model) {
    const id = model.configured;
    this.trouble(t("load.none"), id ? t("load.none.text", { id: nameOf(id) }) : t("load.none.bare"), id ? t("load.again") : null);
  }

  trouble(title, text, action) {
    this.element.replaceChildren(
      h("h1", {}, title),
      h("p", { class: "trouble" }, text),
      ...(action ? [h("button", { type: "button", class: "plain", onclick: this.actions.load }, action)] : []),
      this.about,
    );
  }
}

function nameOf(id) {
  return id === "starter" ? t("model.starter") : (id ?? "");
}
