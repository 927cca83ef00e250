// What runs now: the model, its memory, how far a load is; the machine's memory.

import { h } from "../dom.js";
import { bytes, deviceName, duration, formatName, has, memoryOfChats, shownModel, t, worded } from "../words.js";
import { Bar, modelName, section } from "./models_parts.js";

export class Running {
  constructor(actions) {
    this.actions = actions;
    this.name = h("p", { class: "model-name" });
    this.about = h("p", { class: "facts" });
    this.error = h("p", { class: "trouble", role: "alert", hidden: true });
    this.bar = new Bar(t("load.title"));
    this.stage = h("p", { class: "facts tabular" });
    this.progress = h("div", { class: "progress", hidden: true }, this.bar.element, this.stage);
    this.unload = h("button", { type: "button", class: "plain", onclick: () => actions.unload() }, t("models.unload"));
    this.cancel = h("button", { type: "button", class: "plain", onclick: () => actions.tell("/cancel") }, t("models.cancel"));
    this.card = h(
      "div",
      { class: "card-now" },
      h("div", { class: "line" }, h("div", { class: "what" }, this.name, this.about), this.unload, this.cancel),
      this.progress,
      this.error,
    );
    this.gauges = h("div", { class: "gauges" });
    this.element = section(t("models.now"), this.card, this.gauges);
    this.began = null;
  }

  /** Memory of the processor and of each GPU. */
  machine({ free, total, gpus, cuda, processor }) {
    const rows = [gauge(t("models.cpu"), processor, free, total), ...gpus.map((gpu) => gauge(`GPU ${gpu.index}`, gpu.name, gpu.free, gpu.total))];
    if (cuda?.context_bytes) rows.push(h("p", { class: "facts" }, t("models.now.cuda", { size: bytes(cuda.context_bytes) })));
    this.gauges.replaceChildren(...rows);
  }

  update({ state, id, next, error, progress, resting, info }) {
    const isLoading = progress !== null;
    this.card.dataset.state = state;
    this.name.replaceChildren(...(id && state !== "empty" ? modelName(id === "starter" ? t("model.starter") : id) : []));
    this.name.hidden = this.name.childNodes.length === 0;
    const words = [];
    if (state === "empty") words.push(resting ? t("models.now.resting", { id: id && shownModel(id) }) : t("models.now.none"));
    if (info) words.push(`${formatName(info.format)} ·`, t("models.now.memory", { w: bytes(info.weights), device: deviceName(info.device), chats: memoryOfChats(info) }));
    if (next) words.push(t("models.now.next", { id: shownModel(next) }));
    this.about.textContent = words.join(" ");
    this.about.hidden = words.length === 0;
    this.unload.hidden = state !== "ready" || isLoading;
    this.cancel.hidden = !isLoading;
    this.error.hidden = !error;
    this.error.textContent = worded(error) ?? "";
    this.progress.hidden = !isLoading;
    if (isLoading) this.draw(progress);
  }

  draw({ stage, done, total, source }) {
    const known = total > 0;
    this.bar.set(known ? done / total : null);
    const now = performance.now();
    if (this.began?.stage !== stage) this.began = { stage, done, at: now };
    const seconds = (now - this.began.at) / 1000;
    const rate = (done - this.began.done) / seconds;
    const words = [has(`stage.${stage}`) ? t(`stage.${stage}`) : stage];
    if (source) words[0] += ` · ${source}`;
    if (known) words.push(total > 100_000 ? t("models.done", { done: bytes(done), total: bytes(total) }) : t("models.done", { done, total }));
    if (known && seconds > 1.5 && rate > 0 && done < total) words.push(t("load.left", { s: duration(Math.ceil((total - done) / rate)) }));
    this.stage.textContent = words.join(" · ");
  }
}

function gauge(label, name, free, total) {
  const used = h("span", { class: "done" });
  used.style.width = `${(1 - free / total) * 100}%`;
  const words = t("models.free", { free: bytes(free), total: bytes(total) });
  return h(
    "div",
    { class: "gauge" },
    h("span", { class: "label", title: name }, label, h("span", { class: "device" }, name)),
    h("span", { class: "meter", role: "img", "aria-label": `${label}: ${words}` }, used),
    h("span", { class: "figure tabular" }, words),
  );
}
