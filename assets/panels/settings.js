// Every key of config.yaml: what it does, what it is now and where that came from. A change is saved at once.

import { h, icon } from "../dom.js";
import { t, worded } from "../words.js";
import { Data } from "./data.js";
import { Household } from "./household.js";
import { control } from "./settings_controls.js";
import { speedCards } from "./settings_speed.js";

const PATH = "/api/ui/settings";
const OWN = new Set(["speed", "household", "data"]); // sections that are more than a list of keys
const IN_SPEED = new Set(["engine.paged_attention", "engine.fusion"]);

let panel = null;

export async function open(root, page) {
  panel = new SettingsPanel(root, page);
  await panel.start();
}

export function close() {
  panel = null;
}

/** The address names a section or a key: #settings/engine, #settings/model.context_length. */
export function route(path) {
  panel?.scrollTo(path);
}

class SettingsPanel {
  constructor(root, page) {
    this.root = root;
    this.page = page;
    this.rows = new Map(); // key: Row
    this.search = h("input", {
      type: "search",
      placeholder: t("settings.search"),
      "aria-label": t("settings.search"),
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.filter(),
    });
    this.places = h("nav", { class: "places", "aria-label": t("settings.sections") });
    this.news = h("div", { class: "news", role: "status" });
    this.sections = h("div", {});
    this.nothing = h("p", { class: "nothing", hidden: true }, t("settings.nothing"));
    const top = h("div", { class: "settings-top" }, h("label", { class: "search" }, icon("search"), this.search), this.places, this.news);
    root.append(top, this.sections, this.nothing);
    new ResizeObserver(() => root.style.setProperty("--settings-top", `${top.offsetHeight}px`)).observe(top);
  }

  async start() {
    this.take(await this.page.get(PATH));
    this.page.on("settings", () => this.refresh()); // the file was changed by hand, or a model has come or gone
    await this.refreshOwn();
    if (this.page.path) this.scrollTo(this.page.path);
  }

  /** The parts that are more than keys. */
  async refreshOwn() {
    await Promise.all([this.household.refresh(), this.data.refresh()]);
  }

  async refresh() {
    const state = await this.page.get(PATH).catch(() => null);
    if (!state || !this.root.isConnected) return;
    this.take(state);
    await this.refreshOwn().catch(() => {});
  }

  take(state) {
    this.state = state;
    if (this.rows.size !== state.keys.length) this.build(state);
    for (const key of state.keys) this.rows.get(key.key).update(key, state.local);
    this.cards.update(new Map(state.keys.map((key) => [key.key, key])));
    this.drawNews(state.pending);
  }

  build(state) {
    this.rows.clear();
    const save = (key, value) => this.save(key, value);
    this.cards = speedCards(state.measured, state.gpu, save);
    this.household = new Household(this.page);
    this.data = new Data(this.page);
    const sections = [["speed", [this.cards.element]]];
    for (const section of state.sections) {
      const rows = state.keys.filter((key) => key.section === section).map((key) => new Row(key, save));
      for (const row of rows) this.rows.set(row.key, row);
      sections.push([section, rows.filter((row) => !IN_SPEED.has(row.key)).map((row) => row.element)]);
    }
    sections.push(["household", [this.household.element]], ["data", [this.data.element]]);
    this.places.replaceChildren(
      ...sections.map(([name]) => h("a", { href: `#settings/${name}` }, t(`settings.section.${name}`))),
    );
    this.sections.replaceChildren(
      ...sections.map(([name, content]) =>
        h(
          "section",
          { "data-section": name, "aria-labelledby": `settings-${name}` },
          h("h2", { id: `settings-${name}` }, t(`settings.section.${name}`)),
          h("p", { class: "lead" }, t(`settings.lead.${name}`)),
          ...content,
        ),
      ),
    );
    this.sections.append(
      h("p", { class: "where" }, t("settings.file"), " ", h("code", {}, state.path)),
      ...(state.local ? [h("button", { type: "button", class: "plain quit", onclick: () => quitApp(this.page) }, t("settings.quit"))] : []),
    );
  }

  /** Save one key; the sentence that says why it cannot be so, or null. */
  async save(key, value) {
    try {
      this.take(await this.page.send(PATH, { changes: { [key]: value } }));
      if (key === "app.language") location.reload();
      return null;
    } catch (failure) {
      return failure.message;
    }
  }

  drawNews({ reload, restart, error }) {
    const parts = [];
    if (error) {
      parts.push(
        h("div", { class: "note bad" }, h("strong", {}, t("settings.error")), h("pre", {}, worded(error)), h("p", {}, t("settings.error.stays"))),
      );
    }
    if (reload.length) {
      const names = h("ul", {}, ...reload.map((key) => h("li", {}, this.named(key))));
      const button = h("button", { type: "button", class: "primary", onclick: () => reloadModel(this.page) }, t("pending.reload"));
      parts.push(h("div", { class: "note" }, h("p", {}, t("pending.reload.why", { n: reload.length })), names, button));
    }
    if (restart.length) {
      const names = h("ul", {}, ...restart.map((key) => h("li", {}, this.named(key))));
      const button = this.state.local
        ? h("button", { type: "button", class: "primary", onclick: () => restartApp(this.page) }, t("pending.restart"))
        : null;
      parts.push(h("div", { class: "note" }, h("p", {}, t("pending.restart.why", { n: restart.length })), names, ...(button ? [button] : [])));
    }
    this.news.replaceChildren(...parts);
  }

  named(key) {
    return this.state.keys.find((row) => row.key === key)?.title ?? key;
  }

  filter() {
    const wanted = this.search.value.trim().toLocaleLowerCase();
    let found = 0;
    for (const row of this.rows.values()) {
      row.element.hidden = Boolean(wanted) && !row.text.includes(wanted);
      found += !row.element.hidden;
    }
    for (const section of this.sections.querySelectorAll("section")) {
      const own = OWN.has(section.dataset.section);
      const says = () => section.textContent.toLocaleLowerCase().includes(wanted);
      section.hidden = own ? Boolean(wanted) && !says() : !section.querySelector(".setting:not([hidden])");
      found += own && !section.hidden;
    }
    this.nothing.hidden = found > 0;
  }

  scrollTo(name) {
    const row = this.rows.get(name);
    if (row) {
      if (row.element.hidden) {
        this.search.value = "";
        this.filter();
      }
      row.element.scrollIntoView({ block: "start" });
      row.element.querySelector("input, select, textarea, button")?.focus({ preventScroll: true });
      return;
    }
    const section = this.sections.querySelector(`[data-section="${CSS.escape(name)}"]`);
    section?.scrollIntoView({ block: "start" });
  }
}

/** One key. */
class Row {
  constructor(key, save) {
    this.key = key.key;
    const id = `set-${key.key.replace(".", "-")}`;
    this.about = h("p", { class: "about", id: `${id}-about` }, key.about);
    this.foot = h("p", { class: "foot" });
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.control = control(key, { id, describedBy: `${id}-about`, save: (value) => this.save(save, value) });
    this.element = h(
      "div",
      { class: `setting ${key.control}`, "data-key": key.key },
      h("div", { class: "words" }, h("label", { for: id }, key.title), h("code", {}, key.key), this.about, this.error, this.foot),
      this.control.element,
    );
    this.text = `${key.title} ${key.key} ${key.about}`.toLocaleLowerCase();
  }

  async save(save, value) {
    const problem = await save(this.key, value);
    this.error.hidden = problem === null;
    this.error.textContent = problem ?? "";
    if (problem === null) this.control.settled?.();
  }

  update(key, local) {
    const outside = key.source === "environment" || key.source === "flag";
    const elsewhere = !local && key.key.startsWith("server.");
    this.control.update(key, outside || elsewhere || key.control === "nothing");
    this.element.classList.toggle("waits", key.waits);
    const foot = [];
    if (outside) foot.push(t(`settings.from.${key.source}`, { place: key.place }));
    else if (key.source === "file") foot.push(key.line ? t("settings.from.file", { n: String(key.line) }) : "config.yaml");
    else foot.push(t("settings.from.default"));
    if (key.resolved !== undefined) foot.push(t("settings.resolved", { value: String(key.resolved) }));
    foot.push(t(key.waits ? "settings.waits" : `settings.when.${key.applies.replace(" ", "_")}`));
    this.foot.replaceChildren(foot.join(" · "));
    const differs = JSON.stringify(key.value) !== JSON.stringify(key.default);
    if (differs && !outside && !elsewhere) {
      const back = h("button", { type: "button", class: "link" }, t("settings.reset", { value: shown(key.default) }));
      back.onclick = () => this.save((...args) => panel.save(...args), key.default);
      this.foot.append(" · ", back);
    }
  }
}

function shown(value) {
  if (value === null) return t("settings.none");
  if (typeof value === "boolean") return t(value ? "settings.on" : "settings.off");
  return Array.isArray(value) ? t("settings.empty") : String(value);
}

/** Ask, with the chats it would stop, then load the model as the file says. */
export async function reloadModel(page) {
  try {
    const { chats, more, others } = await page.get(`${PATH}/pending`);
    if (chats.length + others > 0) {
      const names = chats.map(({ title }) => h("li", { dir: "auto" }, title || t("chats.untitled")));
      if (more) names.push(h("li", {}, t("pending.more", { n: more })));
      if (others) names.push(h("li", {}, t("pending.others", { n: others })));
      const text = [h("p", {}, t("pending.stops")), h("ul", {}, ...names), h("p", {}, t("pending.kept"))];
      if (!(await page.confirm({ title: t("pending.ask"), text, yes: t("pending.reload") }))) return;
    }
    await page.send(`${PATH}/reload`);
  } catch (failure) {
    page.toast(failure.message, { kind: "error" });
  }
}

/** Ask, then let the app start itself anew. The page comes back by itself where its address stays. */
export async function restartApp(page) {
  if (!(await page.confirm({ title: t("pending.restart.ask"), text: t("pending.restart.text"), yes: t("pending.restart") }))) return;
  try {
    await page.send(`${PATH}/restart`);
    page.toast(t("pending.restarting"));
  } catch (failure) {
    page.toast(failure.message, { kind: "error" });
  }
}

/** Ask, then end the app. */
async function quitApp(page) {
  if (!(await page.confirm({ title: t("settings.quit.ask"), text: t("settings.quit.text"), yes: t("settings.quit") }))) return;
  try {
    await page.send(`${PATH}/quit`);
    page.toast(t("settings.quit.done"));
  } catch (failure) {
    page.toast(failure.message, { kind: "error" });
  }
}
