// A control for each kind of key. All have `element` and `update(key, locked)`; a change calls `save(value)`.

import { h } from "../dom.js";
import { t } from "../words.js";

export function control(key, options) {
  switch (key.control) {
    case "switch":
      return switchControl(options);
    case "choice":
      return choiceControl(key, options);
    case "whole":
    case "real":
      return numberControl(key, options);
    case "list":
      return listControl(options);
    case "secret":
      return secretControl(options);
    case "nothing":
      return { element: h("span", { class: "fixed" }, "—"), update: () => {} };
    default:
      return textControl(options);
  }
}

/** A switch with the role and the keyboard of one. */
export function switchControl({ id, describedBy, save, label = null }) {
  const element = h("button", { type: "button", id, class: "switch", role: "switch", "aria-describedby": describedBy, "aria-label": label }, h("i", {}));
  const show = (on) => element.setAttribute("aria-checked", String(on));
  element.onclick = () => {
    const on = element.getAttribute("aria-checked") !== "true";
    show(on);
    save(on);
  };
  return {
    element,
    update: ({ value }, locked) => {
      show(value);
      element.disabled = locked;
    },
  };
}

function choiceControl(key, { id, describedBy, save }) {
  const element = h("select", { id, "aria-describedby": describedBy });
  const name = key.key === "app.language" ? (value) => t(`settings.language.${value}`) : (value) => value;
  for (const value of key.choices) element.append(h("option", { value }, name(value)));
  for (const value of Object.keys(key.missing ?? {})) element.append(h("option", { value, disabled: true }, t("settings.missing", { value })));
  element.onchange = () => save(element.value);
  return {
    element,
    update: ({ value }, locked) => {
      element.value = value;
      element.disabled = locked || key.choices.length < 2;
    },
  };
}

/** Text that is saved when it is left or confirmed; what is being typed is not overwritten by news. */
function field({ id, describedBy, save, parse = (text) => text, show = (value) => value ?? "", ...props }) {
  const element = h("input", { id, "aria-describedby": describedBy, type: "text", autocomplete: "off", spellcheck: "false", ...props });
  let saved = "";
  const commit = () => {
    if (element.value === saved) return;
    const value = parse(element.value.trim());
    save(value);
  };
  element.onblur = commit;
  element.onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter") commit();
    if (event.key === "Escape" && element.value !== saved) {
      element.value = saved;
      event.preventDefault();
    }
  };
  return {
    element,
    update: ({ value }, locked) => {
      const text = String(show(value));
      if (element.value === saved || document.activeElement !== element) element.value = text;
      saved = text;
      element.disabled = locked;
    },
    settled: () => (element.value = saved),
  };
}

function textControl(options) {
  return field(options);
}

function numberControl(key, options) {
  const parse = (text) => {
    if (text === "" && key.has_none) return null;
    if (key.has_auto && (text === "" || text.toLowerCase() === "auto")) return "auto";
    const number = Number(text.replace(/[\s_]/g, ""));
    return text !== "" && Number.isFinite(number) ? number : text; // what is no number the server names in its answer
  };
  return field({
    ...options,
    parse,
    inputmode: key.has_auto ? "text" : "decimal",
    placeholder: key.has_none ? t("settings.none") : key.has_auto ? "auto" : "",
    class: "number",
  });
}

function listControl({ id, describedBy, save }) {
  const element = h("textarea", { id, "aria-describedby": describedBy, rows: "2", spellcheck: "false", placeholder: t("settings.list") });
  let saved = "";
  element.onblur = () => {
    if (element.value === saved) return;
    save(element.value.split("\n").map((line) => line.trim()).filter(Boolean));
  };
  return {
    element,
    update: ({ value }, locked) => {
      const text = value.join("\n");
      if (element.value === saved || document.activeElement !== element) element.value = text;
      saved = text;
      element.disabled = locked;
      element.rows = Math.max(2, value.length);
    },
  };
}

function secretControl({ id, describedBy, save }) {
  const input = h("input", { id, "aria-describedby": describedBy, type: "password", autocomplete: "new-password" });
  const remove = h("button", { type: "button", class: "plain" }, t("settings.secret.remove"));
  remove.onclick = () => save(null);
  const commit = () => {
    if (input.value) save(input.value);
  };
  input.onblur = commit;
  input.onkeydown = (event) => event.key === "Enter" && commit();
  return {
    element: h("span", { class: "secret-box" }, input, remove),
    update: ({ value }, locked) => {
      input.placeholder = t(value === null ? "settings.secret.unset" : "settings.secret.set");
      input.disabled = locked;
      remove.hidden = value === null || locked;
    },
    settled: () => (input.value = ""),
  };
}
