// Opening Octavo to the other devices of the household: one switch, the addresses, the key.

import { copyText, h, iconButton } from "../dom.js";
import { t } from "../words.js";
import { switchControl } from "./settings_controls.js";

const PATH = "/api/ui/household";

export class Household {
  constructor(page) {
    this.page = page;
    this.key = null; // shown once, after it was made
    this.switch = switchControl({ id: "household-open", describedBy: "household-about", save: (open) => (open ? this.change({ open }) : this.close()) });
    this.more = h("div", {});
    this.element = h(
      "div",
      { class: "household" },
      h(
        "div",
        { class: "setting switch" },
        h("div", { class: "words" }, h("label", { for: "household-open" }, t("household.open")), h("p", { class: "about", id: "household-about" }, t("household.about"))),
        this.switch.element,
      ),
      this.more,
    );
  }

  async refresh() {
    this.take(await this.page.get(PATH));
  }

  take(state) {
    this.state = state;
    this.switch.update({ value: state.open }, !state.local || state.fixed_by !== null);
    const parts = [];
    if (!state.local) parts.push(h("p", { class: "foot" }, t("settings.elsewhere")));
    else if (state.fixed_by) parts.push(h("p", { class: "foot" }, t("household.fixed", { place: state.fixed_by })));
    if (this.key) parts.push(this.keyBox());
    if (!state.in_force) parts.push(h("p", { class: "note-line" }, t("household.restart")));
    if (!state.open && state.has_key) parts.push(...this.keptKey(state));
    if (state.open) {
      parts.push(h("p", { class: "about" }, t(state.addresses.length ? "household.addresses" : "household.noaddress")));
      parts.push(h("ul", { class: "addresses" }, ...state.addresses.map((address) => copyable(address))));
      if (state.local && !this.key) {
        const again = h("button", { type: "button", class: "plain" }, t("household.newkey"));
        again.onclick = () => this.newKey();
        parts.push(h("p", { class: "about" }, t("household.lostkey")), again);
      }
    }
    this.more.replaceChildren(...parts);
  }

  /** What a key does while only this machine may enter, and how to be rid of it. */
  keptKey({ local, key_fixed_by: place }) {
    if (place) return [h("p", { class: "about" }, t("household.keyset"), " ", t("household.keyfixed", { place }))];
    const drop = h("button", { type: "button", class: "plain", onclick: () => this.drop() }, t("household.drop"));
    return [h("p", { class: "about" }, t("household.keyset")), ...(local ? [drop] : [])];
  }

  async drop() {
    await this.change({ open: false, drop_key: true });
    this.switch.element.focus();
  }

  /** The house is closed at once; then whether the key is to go with it. */
  async close() {
    await this.change({ open: false });
    const { open, has_key: hasKey, key_fixed_by: place } = this.state;
    if (open || !hasKey || place) return;
    const ask = { title: t("household.drop.ask"), text: t("household.drop.text"), yes: t("household.drop"), no: t("household.keep") };
    if (await this.page.confirm(ask)) await this.drop();
  }

  keyBox() {
    return h("div", { class: "note" }, h("p", {}, t("household.key")), copyable(this.key), h("p", { class: "small" }, t("household.once")));
  }

  async newKey() {
    const ask = { title: t("household.newkey.ask"), text: t("household.newkey.text"), yes: t("household.newkey") };
    if (await this.page.confirm(ask)) await this.change({ open: true, new_key: true });
  }

  async change(wanted) {
    try {
      const { key } = await this.page.send(PATH, wanted);
      this.key = key ?? (wanted.open ? this.key : null);
    } catch (failure) {
      this.page.toast(failure.message, { kind: "error" });
    }
    await this.refresh();
  }
}

function copyable(text) {
  const button = iconButton("copy", t("turn.copy"), () => copyText(text));
  return h(text.startsWith("http") ? "li" : "p", { class: "copyable" }, h("code", {}, text), button);
}
