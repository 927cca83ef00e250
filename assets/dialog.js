// Questions that must be answered first, and short notes that go by themselves.

import { h, iconButton } from "./dom.js";
import { t } from "./words.js";

const TOAST_MS = 6000; // at least
const MOST_TOAST_MS = 15_000;
const READING_MS = 70; // of a character
const SHOWN_AT_ONCE = 3;
const NARROWEST_PX = 240; // of a place for notes

/** Ask; true if the answer is yes. `text` may be a string or elements; `danger` marks what cannot be undone. */
export function confirm({ title, text = "", yes, no = t("dialog.no"), danger = false }) {
  return new Promise((resolve) => {
    const id = `dialog-${Math.random().toString(36).slice(2)}`;
    let agreed = false;
    const accept = h("button", { type: "button", class: danger ? "danger" : "primary" }, yes);
    const dialog = h(
      "dialog",
      { "aria-labelledby": id, class: "question" },
      h("h2", { id }, title),
      ...(typeof text === "string" ? (text ? [h("p", {}, text)] : []) : [text].flat()),
      h("div", { class: "choices" }, h("button", { type: "button", class: "plain", onclick: () => dialog.close() }, no), accept),
    );
    accept.onclick = () => {
      agreed = true;
      dialog.close();
    };
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(agreed);
    });
    document.getElementById("octavo").append(dialog);
    dialog.showModal();
  });
}

let shelf = null;

/** Above the composer and no wider; where a panel lies over it, at the bottom of the window. */
function placeShelf() {
  if (!shelf?.childElementCount) return;
  const box = document.getElementById("octavo-composer")?.getBoundingClientRect();
  const panel = document.getElementById("octavo-panel")?.getBoundingClientRect();
  const end = box && Math.min(box.right, panel?.width ? panel.left : Infinity);
  const isFree = box && end - box.left >= NARROWEST_PX;
  shelf.style.left = isFree ? `${box.left}px` : "";
  shelf.style.right = isFree ? `${innerWidth - end}px` : "";
  shelf.style.bottom = isFree ? `${innerHeight - box.top + 8}px` : "";
}

function watchShelf() {
  const observer = new ResizeObserver(placeShelf);
  for (const id of ["octavo-composer", "octavo-panel"]) {
    const element = document.getElementById(id);
    if (element) observer.observe(element);
  }
  addEventListener("resize", placeShelf);
}

/**
 * A note at the bottom. `action` is {label, run}; it stays for `ms`, with `keep` until it is dismissed. Returns the way to
 * end it.
 */
export function toast(text, { action = null, kind = "plain", keep = false, ms = null } = {}) {
  if (!shelf) {
    shelf = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
    watchShelf();
  }
  if (!shelf.isConnected) document.getElementById("octavo").append(shelf);
  const end = () => note.remove();
  const note = h("div", { class: `toast ${kind}` }, h("p", {}, text));
  if (action) {
    const run = () => {
      end();
      action.run();
    };
    note.append(h("button", { type: "button", class: "plain", onclick: run }, action.label));
  }
  note.append(iconButton("close", t("toast.close"), end));
  shelf.append(note);
  while (shelf.childElementCount > SHOWN_AT_ONCE) shelf.firstChild.remove();
  placeShelf();
  if (!keep) waitUnread(note, end, ms ?? Math.min(MOST_TOAST_MS, Math.max(TOAST_MS, READING_MS * text.length)));
  return end;
}

/** Let a note go after `ms` in which nobody points at it or has the keyboard in it. */
function waitUnread(note, end, ms) {
  let timer = setTimeout(end, ms);
  const hold = () => clearTimeout(timer);
  const letGo = () => {
    clearTimeout(timer);
    timer = setTimeout(end, ms);
  };
  for (const event of ["pointerenter", "focusin"]) note.addEventListener(event, hold);
  for (const event of ["pointerleave", "focusout"]) note.addEventListener(event, letGo);
}
