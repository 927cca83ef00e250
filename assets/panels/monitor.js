// What the engine does now.

import { h } from "../dom.js";
import { t } from "../words.js";

const EVERY_MS = 1000;
let timer = null;

export async function open(root, page) {
  const list = h("dl", { class: "tabular" });
  root.replaceChildren(list);
  const draw = async () => {
    const { requests, pages } = await page.get("/api/ui/monitor");
    const rows = [
      [t("monitor.running"), requests.running ?? 0],
      [t("monitor.waiting"), requests.waiting ?? 0],
      [t("monitor.free"), pages.free ?? 0],
    ];
    list.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  };
  await draw();
  timer = setInterval(() => draw().catch(() => {}), EVERY_MS);
}

export function close() {
  clearInterval(timer);
}
