// What the model chip's card offers beside the facts: recent models, all models, unloading.

import { h } from "./dom.js";
import { shownModel, t } from "./words.js";

const SHOWN = 4;

/** `news`: the board's "models" (null: not there yet). `actions`: load(recent), models(), unload(). */
export function modelMenu(news, actions) {
  const parts = [];
  const close = (run) => (event) => {
    event.target.closest("[popover]")?.hidePopover();
    run();
  };
  const others = (news?.recent ?? []).filter((recent) => !(news.state === "ready" && recent.id === news.id)).slice(0, SHOWN);
  if (others.length) {
    parts.push(h("p", { class: "menu-title" }, t("model.recent")));
    for (const recent of others) {
      const name = shownModel(recent.id);
      parts.push(h("button", { type: "button", class: "menu-item", "aria-label": t("models.load.label", { id: name }), onclick: close(() => actions.load(recent)) }, name));
    }
  }
  parts.push(h("button", { type: "button", class: "menu-item", onclick: close(actions.models) }, t("load.choose")));
  if (news?.state === "ready" && news.progress === null) {
    parts.push(h("button", { type: "button", class: "menu-item", onclick: close(actions.unload) }, t("models.unload")));
  }
  return h("div", { class: "model-menu" }, ...parts);
}
