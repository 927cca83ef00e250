// Models of the hub: nothing is asked until somebody searches or looks at one.

import { h, icon, iconButton } from "../dom.js";
import { bytes, t, timeOfDay, worded } from "../words.js";
import { accessHelp } from "./models_fetching.js";
import { count, facts, fitPicture, fitVerdict, modelName, parameters, tokens, section } from "./models_parts.js";

const KINDS = ["any", "safetensors", "gguf"];

export class Hub {
  constructor(actions) {
    this.actions = actions;
    this.kind = "any";
    this.words = h("input", { type: "search", placeholder: t("models.search"), "aria-label": t("models.search"), autocomplete: "off", spellcheck: "false" });
    this.kinds = KINDS.map((kind) =>
      h("button", { type: "button", class: "kind", "aria-pressed": String(kind === "any"), onclick: () => this.choose(kind) }, t(`models.kind.${kind}`)),
    );
    this.form = h(
      "form",
      { class: "hub-form", role: "search" },
      h("label", { class: "search" }, icon("search"), this.words),
      h("button", { class: "primary" }, t("models.search.do")),
      h("div", { class: "kinds", role: "group", "aria-label": t("models.kind") }, ...this.kinds),
    );
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.search();
    });
    this.lead = h("p", { class: "facts" });
    this.heading = h("h3", {}, t("models.suggested"));
    this.note = h("p", { class: "facts", role: "status", hidden: true });
    this.known = h("p", { class: "facts known", role: "status", hidden: true });
    this.results = h("ul", { class: "rows", "aria-live": "polite" });
    this.element = section(t("models.hub"), this.form, this.lead, this.note, this.heading, this.known, this.results);
    this.rows = [];
    this.hasSearched = false;
    this.isAway = false; // whether the hub gave no answer the last time
  }

  overview(overview) {
    this.actions.hub = overview.hub;
    this.offline = overview.offline;
    this.have = new Set(overview.models.filter((model) => model.complete).map((model) => model.id));
    for (const control of [this.words, this.form.querySelector(".primary"), ...this.kinds]) control.disabled = overview.offline;
    this.lead.textContent = overview.offline ? t("models.offline") : t("models.search.lead", { hub: new URL(overview.hub).host });
    if (!this.hasSearched) this.suggest(overview.suggestions);
    this.answered(this.isAway);
  }

  /** Note whether the hub was away. What is shown then is what was known before: said as that, and no more. */
  answered(isAway) {
    this.isAway = isAway;
    const said = this.foundAt ? t("models.away.found", { time: timeOfDay(this.foundAt) }) : t("models.away.suggested");
    this.known.hidden = !this.isUnsure || this.rows.length === 0;
    if (!this.known.hidden && this.known.textContent !== said) this.known.textContent = said;
    for (const row of this.rows) row.refresh();
  }

  get isUnsure() {
    return this.isAway || this.offline;
  }

  suggest(models) {
    const key = models.map((model) => model.id + model.quantization).join();
    if (key === this.suggested) return;
    this.suggested = key;
    this.heading.hidden = models.length === 0;
    this.show(
      models.map((model) => {
        const isPlain = model.quantization === "none";
        const verdict = new Verdict(isPlain ? "fits" : "converted");
        const about = facts(t("models.params", { n: parameters(model.parameters) }), bytes(model.download), verdict.element);
        return new Row(model.id, about, this, { verdict, quantization: isPlain ? null : model.quantization });
      }),
    );
  }

  choose(kind) {
    this.kind = kind;
    this.kinds.forEach((button, at) => button.setAttribute("aria-pressed", String(KINDS[at] === kind)));
    if (this.hasSearched) this.search();
  }

  async search() {
    const words = this.words.value.trim();
    this.tell(t("models.searching"));
    const number = (this.number = (this.number ?? 0) + 1);
    try {
      const { found } = await this.actions.send("/search", { words, kind: this.kind });
      if (number !== this.number) return;
      this.hasSearched = true;
      this.foundAt = Date.now() / 1000;
      this.heading.hidden = true;
      this.tell(found.length === 0 ? t("models.search.none") : null);
      this.show(found.map((model) => this.found(model)));
      this.answered(false);
    } catch (failure) {
      if (number !== this.number) return;
      this.tell(failure.message, "trouble");
      if (failure.code === "offline") this.answered(true);
    }
  }

  found(model) {
    const verdict = model.fits ? new Verdict(model.fits) : null;
    const about = facts(
      model.kind === "gguf" ? "GGUF" : "Safetensors",
      model.parameters ? t("models.params", { n: parameters(model.parameters) }) : null,
      tokens(model.context_length),
      t("models.downloads.count", { n: count(model.downloads) }),
      model.gated ? h("span", { class: "bad" }, t("models.gated")) : null,
      verdict?.element,
    );
    return new Row(model.id, about, this, { verdict });
  }

  /** A line above what is shown, which stays: a search that fails takes nothing away. */
  tell(text, kind = "facts") {
    this.note.hidden = text === null;
    this.note.className = kind;
    this.note.textContent = text ?? "";
  }

  show(rows) {
    this.rows = rows;
    this.results.replaceChildren(...rows.map((row) => row.element));
  }

  update(jobs) {
    this.jobs = new Set(jobs.filter(({ state }) => state === "running" || state === "waiting").map((job) => job.model_id));
    const lost = jobs.filter((job) => job.reason === "offline").map((job) => job.id).join();
    const isNews = lost !== "" && lost !== this.lost;
    this.lost = lost;
    this.answered(isNews || this.isAway);
  }
}

/** Whether a model fits by its size; without the hub's answer no more than that it would. */
class Verdict {
  constructor(fits) {
    this.fits = fits;
    this.element = h("span", {});
  }

  show(isUnsure) {
    const isGood = this.fits !== "no";
    this.element.className = isGood ? (isUnsure ? "" : "good") : "bad";
    this.element.textContent = t(`models.${isGood && isUnsure ? "would" : "fits"}.${this.fits}`);
  }
}

class Row {
  constructor(id, about, hub, { verdict = null, quantization = null } = {}) {
    this.id = id;
    this.hub = hub;
    this.verdict = verdict;
    this.quantization = quantization;
    this.open = iconButton("chevron", t("models.look", { id }), () => this.toggle(), { class: "quiet open", "aria-expanded": "false" });
    this.more = h("div", { class: "more", hidden: true });
    this.element = h(
      "li",
      { class: "row" },
      h("div", { class: "line" }, h("div", { class: "what" }, h("p", { class: "model-name" }, ...modelName(id)), about), this.open),
      this.more,
    );
    this.choices = [];
  }

  async toggle() {
    const isOpen = this.more.hidden;
    this.more.hidden = !isOpen;
    this.open.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen || this.about) return;
    this.more.replaceChildren(h("p", { class: "facts", role: "status" }, t("models.looking")));
    try {
      this.about = await this.hub.actions.send("/look", { id: this.id });
      this.draw();
      this.hub.answered(false);
    } catch (failure) {
      if (failure.code === "offline") this.hub.answered(true);
      this.more.replaceChildren(h("p", { class: "trouble", role: "alert" }, failure.message));
      if (["no_token", "no_access", "wrong_token"].includes(failure.code)) {
        this.more.append(h("div", { class: "help" }, ...accessHelp(this.id, this.hub.actions)));
      }
    }
  }

  draw() {
    const { about } = this;
    const parts = [];
    if (about.problem) {
      parts.push(h("p", { class: "trouble", role: "alert" }, worded(about.problem.message)));
      if (about.problem.reason) parts.push(h("div", { class: "help" }, ...accessHelp(this.id, this.hub.actions)));
    }
    if (about.fit) parts.push(fitPicture(about.fit), fitVerdict(about.fit, (choice) => this.take(choice), { lengths: false }));
    this.choices = about.choices.map((choice) => this.choice(choice));
    parts.push(h("ul", { class: "choices-list" }, ...this.choices.map((choice) => choice.element)));
    const about_line = facts(about.license, h("a", { href: about.page, target: "_blank", rel: "noreferrer noopener" }, about.page.replace(/^https?:\/\//, "")));
    parts.push(about_line);
    this.more.replaceChildren(...parts);
    this.refresh();
  }

  choice({ id, variant, size, there, verdict }) {
    const get = h("button", { type: "button", class: "plain", "aria-label": t("models.get.label", { id }), onclick: () => this.get(id) }, t("models.get"));
    const have = h("span", { class: "mark", hidden: true }, t("models.have"));
    const amount = there > 0 && there < size ? t("models.get.rest", { size: bytes(size - there) }) : bytes(size);
    const element = h("li", {}, h("span", { class: "variant" }, variant ?? "Safetensors"), verdict ? h("span", { class: `small ${verdict === "no" ? "bad" : "good"}` }, t(`models.fits.${verdict}`)) : null, h("span", { class: "figure tabular" }, amount), have, get);
    return { id, element, get, have };
  }

  refresh() {
    this.verdict?.show(this.hub.isUnsure);
    for (const { id, get, have } of this.choices) {
      const isHere = this.hub.have?.has(id);
      have.hidden = !isHere;
      get.hidden = isHere;
      get.disabled = this.hub.jobs?.has(id) ?? false;
    }
  }

  take({ quantization }) {
    this.quantization = quantization ?? this.quantization;
    this.about = { ...this.about, fit: this.about.fit && as(this.about.fit, this.quantization) };
    this.draw();
  }

  get(id) {
    return this.hub.actions.download(id, { load: true, quantization: this.quantization });
  }
}

/** The same estimate with another format in its middle. */
function as(fit, quantization) {
  const chosen = fit.alternatives.find((row) => row.quantization === quantization);
  return chosen ? { ...fit, fit: chosen } : fit;
}
