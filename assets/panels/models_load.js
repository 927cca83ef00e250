// How to load a model: context and format, with the memory that takes while one chooses.

import { h } from "../dom.js";
import { t } from "../words.js";
import { FormatChoice } from "./models_formats.js";
import { fitPicture, fitVerdict } from "./models_parts.js";

const LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576];
const PATIENCE_MS = 150;

export class LoadForm {
  /** `longest`: the model's own context, if known. `last`: how it was loaded the last time. */
  constructor(id, longest, overview, last, actions) {
    this.id = id;
    this.actions = actions;
    this.asked = 0;
    const wanted = last?.context_length ?? null;
    const lengths = LENGTHS.filter((length) => !longest || length < longest);
    if (longest) lengths.push(longest);
    if (wanted && !lengths.includes(wanted)) lengths.push(wanted);
    lengths.sort((a, b) => a - b);
    this.length = h(
      "select",
      { onchange: () => this.ask() },
      h("option", { value: "" }, t("models.length.auto")),
      ...lengths.map((length) => h("option", { value: String(length), selected: length === wanted }, t("model.tokens", { n: length }))),
    );
    this.format = new FormatChoice(last?.quantization ?? overview.quantization, () => this.ask());
    this.picture = h("div", { class: "fit", role: "status" }, h("p", { class: "facts" }, t("models.fit.asking")));
    this.load = h("button", { type: "button", class: "primary", onclick: () => actions.load(this.id, this.choice) });
    this.news(actions.news());
    this.element = h(
      "div",
      { class: "load-form" },
      h("label", {}, h("span", {}, t("models.length")), this.length),
      h("label", {}, h("span", {}, t("models.format")), this.format.element),
      this.format.about,
      this.picture,
      this.load,
      this.holds(),
      this.format.all,
    );
  }

  /** How long a choice holds, and where one is made for good. */
  holds() {
    const always = h("button", { type: "button", class: "link" }, t("models.holds.always"));
    always.onclick = () => this.actions.page.go("settings", "model.quantization");
    return h("p", { class: "facts holds" }, t("models.holds"), " ", always);
  }

  news(news) {
    const isLoaded = news?.state === "ready" && news.id === this.id;
    this.load.textContent = isLoaded ? t("models.load.again") : t("models.load");
  }

  get choice() {
    return { context_length: this.length.value ? Number(this.length.value) : null, quantization: this.format.value };
  }

  /** Ask what it needs as chosen now; only the last question's answer is drawn. */
  ask() {
    const number = ++this.asked;
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      try {
        const answer = await this.actions.send("/fit", { id: this.id, ...this.choice });
        if (number === this.asked) this.draw(answer);
      } catch (failure) {
        if (number === this.asked) this.picture.replaceChildren(h("p", { class: "trouble" }, failure.message));
      }
    }, this.asked > 1 ? PATIENCE_MS : 0);
  }

  draw(answer) {
    this.format.offer(answer);
    this.picture.replaceChildren(fitPicture(answer), fitVerdict(answer, (choice) => this.take(choice)));
  }

  take({ context_length: length, quantization }) {
    if (quantization) this.format.choose(quantization);
    if (length) {
      if (![...this.length.options].some((option) => option.value === String(length))) {
        this.length.append(h("option", { value: String(length) }, t("model.tokens", { n: length })));
      }
      this.length.value = String(length);
    }
    this.ask();
  }
}
