// Every key of config.yaml: what it is now, and where that came from.

import { h } from "../dom.js";
import { t } from "../words.js";

export async function open(root, page) {
  const { path, keys } = await page.get("/api/ui/settings");
  const rows = keys.map(({ key, value, about, source }) =>
    h(
      "div",
      { class: "setting" },
      h("code", {}, key),
      h("span", { class: "value" }, Array.isArray(value) ? value.join(", ") : String(value)),
      h("span", { class: "from" }, t(`settings.from.${source}`)),
      h("p", {}, about),
    ),
  );
  root.replaceChildren(h("p", { class: "path" }, path), ...rows);
}

export function close() {}
