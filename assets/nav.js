// The slim bar at the left edge: the chats, and each panel by its icon and name.

import { h, icon } from "./dom.js";
import { t } from "./words.js";

export class Nav {
  /** `names`: the panels. `actions`: chats(), open(name). */
  constructor(element, names, actions) {
    element.setAttribute("role", "navigation");
    element.setAttribute("aria-label", t("nav"));
    this.buttons = new Map();
    element.append(this.button("chats", () => actions.chats()), h("span", { class: "space" }));
    for (const name of names) element.append(this.button(name, () => actions.open(name)));
  }

  button(name, onclick) {
    const badge = h("span", { class: "badge", hidden: true });
    const button = h(
      "button",
      { type: "button", class: "place", "data-panel": name, onclick },
      h("span", { class: "picture" }, icon(name), badge),
      h("span", { class: "label" }, t(`nav.${name}`)),
    );
    this.buttons.set(name, { button, badge });
    return button;
  }

  /** Mark where we are: a panel's name, or null for the chats alone. */
  select(name) {
    for (const [key, { button }] of this.buttons) {
      if (key === (name ?? "chats")) button.setAttribute("aria-current", "page");
      else button.removeAttribute("aria-current");
    }
  }

  /** A small mark on a panel's icon: a number, or "" for none; `label` says what it counts. */
  badge(name, text, label = "") {
    const entry = this.buttons.get(name);
    if (!entry) return;
    entry.badge.hidden = text === "";
    entry.badge.textContent = text;
    entry.button.title = label;
  }

  focus(name) {
    this.buttons.get(name)?.button.focus();
  }
}
