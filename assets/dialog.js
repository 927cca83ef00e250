// Questions that must be answered first, and short notes that go by themselves.

import { h, iconButton } from "./dom.js";
import { t } from "./words.js";

const TOAST_MS = 6000;
const SHOWN_AT_ONCE = 3;

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

/** A note at the bottom. `action` is {label, run}; with `keep` it stays until it is dismissed. Returns the way to end it. */
export function toast(text, { action = null, kind = "plain", keep = false } = {}) {
  shelf ??= h("div", { class: "toasts", role: "status", "aria-live": "polite" });
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
  if (!keep) waitUnread(note, end);
  return end;
}

/** Let a note go after a while in which nobody points at it. */
function waitUnread(note, end) {
  let timer = setTimeout(end, TOAST_MS);
  note.onpointerenter = note.onfocusin = () => clearTimeout(timer);
  note.onpointerleave = () => (timer = setTimeout(end, TOAST_MS));
}
