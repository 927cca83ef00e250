// The two great switches, with what they were measured to change.

import { h } from "../dom.js";
import { has, speed, t } from "../words.js";
import { switchControl } from "./settings_controls.js";

const SWITCHES = ["paged_attention", "fusion"];

/** Without a `gpu` the figures say little of this machine: they are folded. `save(key, value)` answers with why it cannot be so, or null. */
export function speedCards(measured, gpu, save) {
  const model = measured.model.replace(/^shape:/, "");
  const where = t("settings.measured.where", { device: measured.device, model });
  const cards = new Map(SWITCHES.map((name) => [`engine.${name}`, new Card(`engine.${name}`, measured.switches[name] ?? {}, where, gpu, save)]));
  const about = h("p", { class: "measured" }, t("settings.measured", { device: measured.device, model, date: measured.date }));
  const command = h("p", { class: "measured" }, t("settings.measure.here"), " ", h("code", {}, "octavo bench --compare fusion,paged_attention"));
  return {
    element: h("div", { class: "speed" }, ...[...cards.values()].map((card) => card.element), about, command),
    update: (keys) => cards.forEach((card, key) => card.update(keys.get(key))),
  };
}

class Card {
  constructor(key, figures, where, gpu, save) {
    const id = `speed-${key.replace(".", "-")}`;
    this.title = h("label", { for: id });
    this.about = h("p", { class: "about", id: `${id}-about` });
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.foot = h("p", { class: "foot" });
    this.switch = switchControl({
      id,
      describedBy: `${id}-about`,
      save: async (value) => {
        const problem = await save(key, value);
        this.error.hidden = problem === null;
        this.error.textContent = problem ?? "";
      },
    });
    const bars = Object.entries(figures).map(([workload, { on, off }]) => comparison(workload, where, on, off));
    const shown = gpu || !bars.length ? bars : [h("details", {}, h("summary", {}, t("settings.measured.elsewhere")), ...bars)];
    const head = h("div", { class: "card-head" }, this.title, h("code", {}, key), this.switch.element);
    this.element = h("div", { class: "card-speed", "data-key": key }, head, this.about, ...shown, this.error, this.foot);
  }

  update(key) {
    this.title.textContent = key.title;
    this.about.textContent = key.about;
    const outside = key.source === "environment" || key.source === "flag";
    this.switch.update(key, outside);
    this.element.classList.toggle("waits", key.waits);
    this.foot.textContent = outside
      ? t(`settings.from.${key.source}`, { place: key.place })
      : t(key.waits ? "settings.waits" : "settings.when.model_reload");
  }
}

/** Two bars: with and without. */
function comparison(workload, where, on, off) {
  const most = Math.max(on, off);
  const name = has(`workload.${workload}`) ? t(`workload.${workload}`) : workload;
  const bar = (value, label, kind) =>
    h(
      "div",
      { class: `bar ${kind}` },
      h("span", { class: "which" }, label),
      h("span", { class: "track" }, filled(value / most)),
      h("span", { class: "figure tabular" }, t("figures.speed", { n: speed(value) })),
    );
  const change = on / off;
  const times = change >= 2 ? t("settings.times", { n: speed(change) }) : t("settings.percent", { n: Math.round((change - 1) * 100) });
  return h(
    "div",
    { class: "comparison" },
    h("p", { class: "workload" }, name, h("span", { class: "change" }, times), h("span", { class: "measured-on" }, where)),
    bar(on, t("settings.on"), "on"),
    bar(off, t("settings.off"), "off"),
  );
}

function filled(share) {
  const fill = h("span", {});
  fill.style.width = `${Math.max(0.5, share * 100)}%`;
  return fill;
}
