// The format a model's weights are loaded in: those that this machine and the model can use, each explained.

import { h } from "../dom.js";
import { bytes, t } from "../words.js";

let made = 0;

export class FormatChoice {
  /** `chosen`: the format to begin with, offered by itself until it is known which others there are. */
  constructor(chosen, changed) {
    const id = `models-format-${(made += 1)}`;
    this.rows = [];
    this.element = h("select", { "aria-describedby": id });
    this.element.onchange = () => {
      this.explain();
      changed();
    };
    this.about = h("p", { id, class: "facts format-about", "aria-live": "polite" });
    this.list = h("dl", {});
    this.all = h("details", { class: "formats", hidden: true }, h("summary", {}, t("format.all")), this.list);
    this.fill(chosen === "none" ? ["none"] : ["none", chosen], chosen);
  }

  get value() {
    return this.element.value;
  }

  choose(name) {
    if (![...this.element.options].some((option) => option.value === name)) this.element.append(optionOf(name));
    this.element.value = name;
    this.explain();
  }

  /** What an estimate found: every format there is for the model on this machine, with its size and its pace. */
  offer({ alternatives, sixteen_bit: whole }) {
    this.rows = alternatives;
    this.whole = whole;
    const names = alternatives.map((row) => row.quantization);
    if (names.join() !== [...this.element.options].map((option) => option.value).join()) this.fill(names, this.value);
    this.list.replaceChildren(...alternatives.flatMap((row) => [h("dt", {}, nameOf(row.quantization), " ", h("span", { class: "tabular" }, this.size(row))), h("dd", {}, words(row))]));
    this.all.hidden = alternatives.length < 2;
    this.explain();
  }

  fill(names, chosen) {
    const shown = names.includes(chosen) ? names : [...names, chosen];
    this.element.replaceChildren(...shown.map(optionOf));
    this.element.value = chosen;
  }

  explain() {
    const row = this.rows.find((one) => one.quantization === this.value);
    const text = row ? words(row) : t(`format.about.${this.value}`);
    if (this.about.textContent !== text) this.about.textContent = text;
  }

  size({ weight_bytes: size }) {
    return t("format.size", { size: bytes(size), share: Math.round((100 * size) / Math.max(1, this.whole)) });
  }
}

function optionOf(name) {
  return h("option", { value: name }, nameOf(name));
}

function nameOf(name) {
  return name === "none" ? t("models.format.none") : name;
}

function words({ quantization: name, pace }) {
  const about = t(`format.about.${name}`);
  return pace === "same" ? about : t("format.sentences", { first: about, second: t(`format.${pace}`) });
}
