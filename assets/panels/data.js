// What Octavo keeps of its user: where it is, how large; a copy of it, moving it, deleting it.

import { h } from "../dom.js";
import { bytes, t } from "../words.js";
import { restartApp } from "./settings.js";

const PATH = "/api/ui/data";
const DELETABLE = ["chats", "log", "cache"];

export class Data {
  constructor(page) {
    this.page = page;
    this.places = h("dl", { class: "data-places" });
    this.folder = h("input", { type: "text", id: "data-folder", spellcheck: "false", autocomplete: "off", placeholder: t("data.folder") });
    this.moveButton = h("button", { type: "submit", class: "plain" }, t("data.move"));
    this.moveError = h("p", { class: "error", role: "alert", hidden: true });
    this.moveForm = h("form", { class: "data-move" }, h("label", { for: "data-folder" }, t("data.move.label")), h("div", { class: "line" }, this.folder, this.moveButton), this.moveError);
    this.moveForm.onsubmit = (event) => {
      event.preventDefault();
      this.move();
    };
    this.boxes = DELETABLE.map((name) => h("input", { type: "checkbox", value: name, id: `data-${name}`, onchange: () => this.choose() }));
    this.deleteButton = h("button", { type: "button", class: "danger", disabled: true, onclick: () => this.delete() }, t("data.delete"));
    const choices = this.boxes.map((box) => h("label", { for: box.id }, box, t(`data.${box.value}`)));
    this.deleteForm = h("fieldset", { class: "data-delete" }, h("legend", {}, t("data.delete.label")), ...choices, this.deleteButton);
    this.note = h("p", { class: "foot" });
    const download = h("a", { class: "plain", href: `${PATH}/export`, download: "" }, t("data.export"));
    this.element = h("div", { class: "data" }, this.places, h("p", {}, download), this.moveForm, this.deleteForm, this.note);
  }

  async refresh() {
    const state = await this.page.get(PATH);
    this.count = state.chats;
    const rows = Object.entries(state.places).flatMap(([name, { path, size }]) => [
      h("dt", {}, t(`data.${name}`), name === "chats" ? ` (${state.chats})` : ""),
      h("dd", {}, h("code", {}, path), h("span", { class: "tabular" }, bytes(size))),
    ]);
    this.places.replaceChildren(...rows);
    this.moveForm.hidden = !state.local;
    this.deleteForm.hidden = !state.local;
    this.folder.disabled = this.moveButton.disabled = !state.movable;
    this.note.textContent = !state.local
      ? t("settings.elsewhere")
      : state.next_folder
        ? t("data.moves", { folder: state.next_folder })
        : state.movable
          ? ""
          : t("data.fixed");
  }

  async move() {
    this.moveError.hidden = true;
    try {
      await this.page.send(`${PATH}/move`, { folder: this.folder.value });
      this.folder.value = "";
      await this.refresh();
      await restartApp(this.page);
    } catch (failure) {
      this.moveError.textContent = failure.message;
      this.moveError.hidden = false;
    }
  }

  get chosen() {
    return this.boxes.filter((box) => box.checked).map((box) => box.value);
  }

  choose() {
    this.deleteButton.disabled = this.chosen.length === 0;
  }

  async delete() {
    await this.refresh(); // there may be more chats by now
    const words = (name) => (name === "chats" ? t("data.chats.n", { n: this.count }) : t(`data.${name}`));
    const names = this.chosen.map((name) => h("li", {}, words(name)));
    const text = [h("p", {}, t("data.delete.text")), h("ul", {}, ...names)];
    if (!(await this.page.confirm({ title: t("data.delete.ask"), text, yes: t("data.delete"), danger: true }))) return;
    try {
      await this.page.send(`${PATH}/delete`, { what: this.chosen });
      for (const box of this.boxes) box.checked = false;
      this.choose();
      this.page.toast(t("data.deleted"));
    } catch (failure) {
      this.page.toast(failure.message, { kind: "error" });
    }
    await this.refresh();
  }
}
