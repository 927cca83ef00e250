// What can be done from the keyboard: one table, which is also the page that lists it.

import { h, iconButton } from "./dom.js";
import { t } from "./words.js";

const IS_MAC = /Mac|iP(hone|ad)/.test(navigator.platform);

// name, keys ("Mod" is Ctrl, on a Mac Cmd), and whether somebody else listens for it already. Not taken: what browsers
// keep for themselves (N, T, W, and P with Shift), and Ctrl+Shift+U, with which Linux begins a character by its number.
const TABLE = [
  ["send", ["Enter"], true],
  ["break", ["Shift+Enter"], true],
  ["edit", ["ArrowUp"], true],
  ["stop", ["Escape"], true],
  ["new", ["Mod+K", "Mod+Shift+O"]],
  ["temporary", ["Mod+Shift+J"]],
  ["search", ["Mod+Shift+F"]],
  ["switch", ["Alt+ArrowUp", "Alt+ArrowDown"], true],
  ["focus", ["Shift+Escape", "/"]],
  ["attach", ["Mod+Shift+A"]],
  ["copy", ["Mod+Shift+C"]],
  ["code", ["Mod+Shift+;"]],
  ["presets", ["Mod+Shift+L"]],
  ["settings", ["Mod+,"]],
  ["help", ["Mod+/", "?"]],
];

const actions = new Map([["help", () => showHelp()]]);

/** Say what a shortcut does. */
export function onShortcut(name, run) {
  actions.set(name, run);
}

/** Do what a shortcut does. */
export function shortcut(name) {
  actions.get(name)?.();
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing || event.keyCode === 229) return;
  if (document.querySelector("dialog[open]")) return;
  for (const [name, keys, elsewhere] of TABLE) {
    if (elsewhere || !actions.has(name) || !keys.some((key) => pressed(event, key))) continue;
    event.preventDefault();
    actions.get(name)();
    return;
  }
});

/** A key without Ctrl or Cmd is a shortcut only where nothing is being typed. */
function pressed(event, keys) {
  const parts = keys.split("+");
  const key = parts.pop();
  const mod = parts.includes("Mod");
  if (mod !== (IS_MAC ? event.metaKey : event.ctrlKey) || event.altKey !== parts.includes("Alt")) return false;
  if (IS_MAC ? event.ctrlKey : event.metaKey) return false;
  if (parts.length === 0) return event.key === key && !isTyping(event.target);
  if (event.shiftKey !== parts.includes("Shift")) return false;
  const typed = key === ";" ? [";", ":"] : key === "/" ? ["/", "?"] : [key.toLowerCase()];
  return typed.includes(event.key.toLowerCase());
}

function isTyping(element) {
  return element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);
}

const NAMES = {
  Mod: IS_MAC ? "⌘" : "Ctrl",
  ArrowUp: "↑",
  ArrowDown: "↓",
  Escape: "Esc",
  Shift: IS_MAC ? "⇧" : "Shift",
  Alt: IS_MAC ? "⌥" : "Alt",
};

function showHelp() {
  const rows = TABLE.map(([name, keys]) =>
    h(
      "div",
      { class: "row" },
      h("dt", {}, t(`shortcuts.${name}`)),
      h("dd", {}, ...keys.flatMap((key, at) => [...(at ? [h("span", {}, t("shortcuts.or"))] : []), drawn(key)])),
    ),
  );
  const close = iconButton("close", t("shortcuts.close"), () => dialog.close());
  const dialog = h(
    "dialog",
    { class: "shortcuts", "aria-labelledby": "shortcuts-title" },
    h("header", {}, h("h2", { id: "shortcuts-title" }, t("shortcuts")), close),
    h("dl", {}, ...rows),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.getElementById("octavo").append(dialog);
  dialog.showModal();
}

function drawn(keys) {
  const parts = keys === "/" || keys === "?" ? [keys] : keys.split("+");
  return h("span", { class: "keys" }, ...parts.map((part) => h("kbd", {}, NAMES[part] ?? part)));
}
