// One sampling value on the presets panel: its slider and number, and what it is while the chat says nothing.

import { h } from "../dom.js";
import { t } from "../words.js";

/** `field` as the server describes it; `save(value)` hears what the reader sets, null for nothing of the chat's own. */
export class FieldRow {
  constructor(field, model, save) {
    this.field = field;
    this.name = field.name;
    this.save = save;
    const id = `sampling-${field.name}`;
    const whole = field.step === 1;
    const inherited = { value: shown(field.value), source: field.source === "model" ? model : null };
    this.inherited = field.value === null ? t("presets.unset") : t(`presets.from.${field.source}`, inherited);
    this.note = h("span", {});
    this.back = h(
      "button",
      { type: "button", class: "link", onclick: () => this.reset() },
      t("presets.back", { value: shown(field.value) }),
    );
    this.foot = h("p", { class: "foot", id: `${id}-foot` }, this.note, " ", this.back);
    this.error = h("p", { class: "trouble", id: `${id}-error`, role: "alert", hidden: true });
    const about = h("p", { class: "about", id: `${id}-about` }, t(`sampling.${field.name}.about`));
    const described = `${id}-error ${id}-about ${id}-foot`;
    if (field.name === "stop") {
      this.input = h("textarea", {
        id,
        rows: "1",
        spellcheck: "false",
        "aria-describedby": described,
        placeholder: t("sampling.stop.placeholder"),
      });
    } else {
      this.input = h("input", {
        id,
        type: "text",
        inputmode: whole ? "numeric" : "decimal",
        autocomplete: "off",
        class: "number tabular",
        "aria-describedby": described,
        placeholder: shown(field.value),
      });
    }
    this.input.oninput = () => this.typed();
    const slides = field.high > field.low;
    if (slides) {
      this.slider = h("input", {
        type: "range",
        min: String(field.low),
        max: String(field.high),
        step: String(field.step),
        "aria-label": t(`sampling.${field.name}`),
        tabindex: "-1",
      });
      this.slider.oninput = () => this.slid();
    }
    const controls = h("div", { class: "controls" }, ...(this.slider ? [this.slider] : []), this.input);
    const label = h("label", { for: id }, t(`sampling.${field.name}`));
    this.element = h(
      "div",
      { class: `field ${field.name === "stop" ? "tall" : ""}` },
      label,
      controls,
      this.error,
      about,
      this.foot,
    );
  }

  show(value) {
    if (document.activeElement !== this.input) {
      this.input.value = value === null ? "" : Array.isArray(value) ? value.join("\n") : String(value);
      this.refuse(null);
    }
    this.slide(value);
    this.mark(value);
  }

  mark(value) {
    this.element.classList.toggle("own", value !== null);
    this.note.textContent = value === null ? this.inherited : t("presets.own");
    this.back.hidden = value === null;
  }

  typed() {
    const text = this.input.value.trim();
    this.refuse(null);
    if (text === "") {
      this.slide(null);
      return this.save(null);
    }
    if (this.name === "stop") return this.save(this.input.value.split("\n").filter(Boolean));
    const number = Number(text.replace(",", "."));
    const problem = this.problem(number);
    if (problem) return this.refuse(problem);
    this.slide(number);
    return this.save(number);
  }

  /** Why a number cannot be the value, in the page's words; null if it can. */
  problem(number) {
    const { least, most } = this.field;
    const name = t(`sampling.${this.name}`);
    const isWhole = this.field.step !== 1 || Number.isInteger(number);
    if (!Number.isFinite(number) || !isWhole) return t(this.field.step === 1 ? "presets.whole" : "presets.number", { name });
    const isIn = (least === null || number >= least) && (most === null || number <= most);
    if (isIn) return null;
    if (most === null) return t("presets.least", { name, least: String(least) });
    return t("presets.range", { name, least: String(least), most: String(most) });
  }

  /** Mark the field, whose value is not taken over, and say why; null: nothing is wrong. */
  refuse(problem) {
    if (problem) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
    this.error.hidden = !problem;
    this.error.textContent = problem ?? "";
  }

  /** Put the slider where a value is; null: where the chat takes it from. */
  slide(value) {
    const { low, high } = this.field;
    if (!this.slider) return;
    const at = Math.min(high, Math.max(low, value ?? this.field.value ?? high));
    this.slider.value = String(at);
    this.slider.style.setProperty("--share", `${((at - low) / (high - low)) * 100}%`);
  }

  slid() {
    this.input.value = this.slider.value;
    this.refuse(null);
    this.slide(Number(this.slider.value));
    this.save(Number(this.slider.value));
  }

  reset() {
    this.input.value = "";
    this.refuse(null);
    this.slide(null);
    this.save(null);
    this.input.focus();
  }
}

function shown(value) {
  if (value === null || value === undefined) return t("presets.nothing");
  return Array.isArray(value) ? value.join(" ") : String(value);
}
