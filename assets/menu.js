// A small menu beside the button that opens it.

import { h, icon } from "./dom.js";

const GAP_PX = 4;

/** Open a menu at `anchor`. `items` are {label, icon, run, danger} or null for a line between them. */
export function openMenu(anchor, items) {
  const menu = h("div", { class: "menu-card", role: "menu", popover: "auto" });
  const entries = items.map((item) => (item === null ? h("hr", {}) : entry(item, menu)));
  menu.append(...entries);
  menu.addEventListener("keydown", (event) => move(event, menu));
  menu.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    anchor.setAttribute("aria-expanded", "false");
    const inside = menu.contains(document.activeElement) || document.activeElement === document.body;
    menu.remove();
    if (inside && anchor.isConnected) anchor.focus({ preventScroll: true });
  });
  document.getElementById("octavo").append(menu);
  anchor.setAttribute("aria-haspopup", "menu");
  anchor.setAttribute("aria-expanded", "true");
  menu.showPopover();
  place(menu, anchor.getBoundingClientRect());
  menu.querySelector("button")?.focus({ preventScroll: true });
  return menu;
}

function entry(item, menu) {
  const run = () => {
    menu.hidePopover();
    item.run();
  };
  const props = { type: "button", role: "menuitem", tabindex: "-1", class: item.danger ? "danger" : null, onclick: run };
  return h("button", props, icon(item.icon), h("span", {}, item.label));
}

function place(menu, at) {
  const { offsetWidth: width, offsetHeight: height } = menu;
  const below = at.bottom + GAP_PX;
  const top = below + height < innerHeight ? below : Math.max(GAP_PX, at.top - height - GAP_PX);
  menu.style.top = `${top}px`;
  menu.style.left = `${Math.max(GAP_PX, Math.min(at.left, innerWidth - width - GAP_PX))}px`;
}

function move(event, menu) {
  const buttons = [...menu.querySelectorAll("button")];
  const at = buttons.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (event.key === "Tab") menu.hidePopover();
  if (to === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  buttons.at(to % buttons.length).focus();
}
