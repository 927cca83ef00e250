// What is on this disk: each model with its facts, a button to load it, and how to load it.

import { copyText, h, iconButton } from "../dom.js";
import { bytes, shownModel, t, worded } from "../words.js";
import { LoadForm } from "./models_load.js";
import { facts, modelName, parameters, tokens, section } from "./models_parts.js";

const FILTER_FROM = 8;

export class LocalModels {
  constructor(actions) {
    this.actions = actions;
    this.rows = new Map(); // id: Row
    this.filter = h("input", {
      type: "search",
      class: "filter",
      placeholder: t("models.filter"),
      "aria-label": t("models.filter"),
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.narrow(),
    });
    this.rowList = h("ul", { class: "rows" });
    this.nothing = h("p", { class: "facts", hidden: true }, t("models.disk.none"));
    this.element = section(t("models.disk"), this.filter, this.rowList, this.nothing);
  }

  list(overview) {
    const there = new Set(overview.models.map((model) => model.id));
    for (const [id, row] of this.rows) {
      if (there.has(id)) continue;
      row.element.remove();
      this.rows.delete(id);
    }
    for (const model of overview.models) {
      if (!this.rows.has(model.id)) this.rows.set(model.id, new Row(model.id, this.actions));
      const row = this.rows.get(model.id);
      row.describe(model, overview);
      this.rowList.append(row.element);
    }
    this.nothing.hidden = overview.models.length > 0;
    this.filter.hidden = overview.models.length < FILTER_FROM;
    this.narrow();
  }

  update(news) {
    for (const row of this.rows.values()) row.news(news);
  }

  narrow() {
    const wanted = this.filter.hidden ? "" : this.filter.value.trim().toLocaleLowerCase();
    for (const [id, row] of this.rows) row.element.hidden = Boolean(wanted) && !id.toLocaleLowerCase().includes(wanted);
  }
}

class Row {
  constructor(id, actions) {
    this.id = id;
    this.actions = actions;
    this.form = null;
    this.title = h("p", { class: "model-name" });
    this.about = h("div", {});
    this.problem = h("p", { class: "trouble", hidden: true });
    this.mark = h("span", { class: "mark", hidden: true }, t("models.loaded"));
    this.load = h("button", { type: "button", class: "plain", "aria-label": t("models.load.label", { id: shownModel(id) }), onclick: () => this.loadNow() }, t("models.load"));
    this.options = iconButton("chevron", t("models.options", { id: shownModel(id) }), () => this.toggle(), { class: "quiet open", "aria-expanded": "false" });
    this.more = h("div", { class: "more", hidden: true });
    this.element = h(
      "li",
      { class: "row" },
      h("div", { class: "line" }, h("div", { class: "what" }, this.title, this.about), this.mark, this.load, this.options),
      this.problem,
      this.more,
    );
  }

  describe(model, overview) {
    this.model = model;
    this.overview = overview;
    const known = model.facts;
    const isStart = overview.at_start === model.id;
    this.title.replaceChildren(...modelName(model.name), isStart ? h("span", { class: "tag" }, t("models.atstart")) : "");
    this.about.replaceChildren(
      facts(
        model.format === "gguf" ? "GGUF" : "Safetensors",
        known?.type,
        known?.parameters ? t("models.params", { n: parameters(known.parameters) }) : null,
        tokens(known?.context_length),
        bytes(model.size),
        model.complete ? null : h("span", { class: "bad" }, t("models.incomplete")),
      ),
    );
    const problem = model.complete ? known?.problem : null;
    this.problem.hidden = !problem;
    this.problem.textContent = worded(problem) ?? "";
    this.load.textContent = model.complete ? t("models.load") : t("models.complete.it");
    this.cannotLoad = Boolean(problem) || (!model.complete && model.origin === "folder");
    this.load.disabled = this.cannotLoad;
    this.news(this.actions.news());
  }

  news(news) {
    if (!news || !this.model) return;
    const isLoaded = news.state === "ready" && news.id === this.id;
    this.mark.hidden = !isLoaded;
    this.load.hidden = isLoaded;
    const isOnItsWay = news.progress !== null && (news.next ?? news.id) === this.id;
    this.load.disabled = this.cannotLoad || isOnItsWay;
    this.form?.news(news);
  }

  loadNow() {
    if (!this.model.complete) return this.actions.download(this.id, { load: true });
    const last = this.overview.recent.find((recent) => recent.id === this.id);
    return this.actions.load(this.id, { context_length: last?.context_length ?? null, quantization: last?.quantization ?? null });
  }

  toggle() {
    const isOpen = this.more.hidden;
    this.more.hidden = !isOpen;
    this.options.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) this.fill();
    else this.more.replaceChildren();
  }

  fill() {
    const { model, overview } = this;
    const last = overview.recent.find((recent) => recent.id === this.id);
    const parts = [];
    if (model.complete && !model.facts?.problem) {
      this.form = new LoadForm(this.id, model.facts?.context_length, overview, last, this.actions);
      parts.push(this.form.element);
    }
    const buttons = [];
    if (overview.at_start !== model.id && model.complete && !model.facts?.problem) {
      buttons.push(h("button", { type: "button", class: "link", onclick: () => this.atStart() }, t("models.atstart.do")));
    }
    buttons.push(h("button", { type: "button", class: "link", onclick: () => this.copyPath() }, t("models.copy.path")));
    if (model.removable && overview.local_user) {
      buttons.push(h("button", { type: "button", class: "link danger", onclick: () => this.remove() }, t("models.remove")));
    }
    parts.push(h("p", { class: "path" }, model.path), h("div", { class: "links" }, ...buttons));
    this.more.replaceChildren(...parts);
    this.form?.ask();
  }

  async atStart() {
    if (!(await this.actions.tell("/start", { id: this.id }))) return;
    this.overview.at_start = this.id;
    this.describe(this.model, this.overview);
    this.fill();
    this.actions.page.toast(t("models.atstart.done", { id: this.model.name }));
  }

  async copyPath() {
    await copyText(this.model.path);
    this.actions.page.toast(t("models.copied"));
  }

  async remove() {
    const { name, size } = this.model;
    const news = this.actions.news();
    if (news?.state === "ready" && news.id === this.id) {
      const text = t("models.remove.loaded", { id: name });
      if (await this.actions.page.confirm({ title: t("models.remove.title"), text, yes: t("models.unload") })) this.actions.unload();
      return;
    }
    const facts = [t("models.remove.text", { id: name, size: bytes(size) })];
    if (this.overview.at_start === this.id) facts.push(t("models.remove.start"));
    const text = facts.map((fact) => h("p", {}, fact));
    const sure = await this.actions.page.confirm({ title: t("models.remove.title"), text, yes: t("models.remove.yes"), danger: true });
    const answer = sure && (await this.actions.tell("/remove", { id: this.id }));
    if (answer) this.actions.page.toast(t("models.removed", { size: bytes(answer.freed) }));
  }
}
