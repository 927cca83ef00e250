// Above the conversation: which model and device run, how full the context is, the colours.

import { h, icon, iconButton } from "./dom.js";
import { modelMenu } from "./model_menu.js";
import { bytes, deviceName, formatName, memoryOfChats, modelTitle, short, shownModel, t, worded } from "./words.js";

const THEME_ICONS = { system: "system", light: "sun", dark: "moon" };

export class Header {
  constructor(panel, actions) {
    this.name = h("span", { class: "name" });
    this.kind = h("span", { class: "kind" });
    this.chip = h(
      "button",
      { type: "button", class: "chip", "aria-haspopup": "dialog", "aria-label": t("model") },
      h("i", { class: "dot" }),
      this.name,
      this.kind,
    );
    this.card = h("div", { class: "card", popover: "auto", id: "octavo-model", role: "dialog", "aria-label": t("model") });
    this.chip.setAttribute("popovertarget", "octavo-model");
    this.meterText = h("span", { class: "tabular" });
    this.meterBar = h("span", { class: "meter" }, h("span", { class: "done" }));
    this.meter = h("div", { class: "context", role: "img", hidden: true }, this.meterBar, this.meterText);
    this.pendingText = h("span", {});
    this.pendingDo = h("button", { type: "button", class: "do" });
    this.pending = h("span", { class: "pending", role: "status", hidden: true }, this.pendingText, this.pendingDo);
    this.offline = h("span", { class: "offline", role: "status", hidden: true }, t("offline"));
    this.theme = iconButton("system", t("theme.system"), () => this.nextTheme());
    panel.append(
      iconButton("menu", t("chats.open"), actions.showList, { class: "quiet menu" }),
      this.chip,
      this.card,
      h("span", { class: "space" }),
      this.pending,
      this.offline,
      this.meter,
      this.theme,
    );
    this.setTheme(localStorage.getItem("octavo-theme") ?? "system");
    addEventListener("storage", ({ key, newValue }) => {
      if (key === "octavo-theme") this.setTheme(newValue ?? "system"); // chosen in another tab
    });
  }

  connected(yes) {
    this.offline.hidden = yes;
    if (yes) this.ending(null);
    if (yes) this.chip.dataset.state = this.current?.state ?? "";
  }

  /** Whether the model is still there cannot be known. */
  lost() {
    this.chip.dataset.state = "lost";
  }

  /** The model is gone with the server. */
  closed() {
    this.chip.dataset.state = "closed";
    this.meter.hidden = true;
  }

  /** Why the connection will be lost: the server was "closed", or begins "again"; null: it was not told. */
  ending(how) {
    this.offline.textContent = t(how === "closed" ? "offline.closed" : "offline");
  }

  /** What of config.yaml is not in force: `actions`: reload(), restart(), show(). */
  settings({ reload, restart, error, theme }, actions) {
    this.configuredTheme(theme);
    const [text, label, run] = error
      ? [t("pending.chip.error"), t("nav.settings"), actions.show]
      : reload.length
        ? [t("pending.chip.reload", { n: reload.length }), t("pending.reload"), actions.reload]
        : [t("pending.chip.restart", { n: restart.length }), t("pending.restart"), actions.restart];
    this.pending.hidden = !error && reload.length + restart.length === 0;
    this.pending.classList.toggle("bad", Boolean(error));
    this.pendingText.textContent = text;
    this.pendingDo.textContent = label;
    this.pending.title = text;
    this.pendingDo.setAttribute("aria-label", `${text}: ${label}`);
    this.pendingDo.onclick = run;
  }

  /** News of all models, and what the chip's card can do with them. */
  models(news, actions) {
    const drawn = JSON.stringify([news.state, news.id, news.next, news.recent, news.progress === null]);
    this.news = news;
    this.modelActions = actions;
    if (this.current && drawn !== this.drawn) this.model(this.current); // not at each step of a download
    this.drawn = drawn;
  }

  model(model) {
    this.current = model;
    const { id, info, state } = model;
    this.chip.dataset.state = state;
    const words = { loading: t("model.loading"), unloading: t("model.unloading"), failed: t("model.failed") };
    this.name.textContent = info ? modelTitle(id, info.format) : (words[state] ?? t("model.none"));
    this.kind.textContent = info ? `${formatName(info.format)} · ${deviceName(info.device)}` : "";
    if (this.news?.next) this.kind.textContent = t("model.next", { id: shownModel(this.news.next) });
    this.chip.setAttribute("aria-label", [`${t("model")}: ${this.name.textContent}`, this.kind.textContent].filter(Boolean).join(", "));
    const rows = info && [
      [t("model"), shownModel(id)],
      [t("model.api"), info.name],
      [t("model.architecture"), info.architecture],
      [t("model.format"), formatName(info.format)],
      [t("model.device"), deviceName(info.device)],
      [t("model.context"), t("model.tokens", { n: info.context })],
      [t("model.memory"), t("model.memory.text", { w: bytes(info.weights), chats: memoryOfChats(info) })],
    ];
    this.card.replaceChildren(
      ...(rows ? [h("dl", {}, ...rows.flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]))] : []),
      ...(model.error ? [h("p", { class: "error" }, worded(model.error))] : []),
      ...model.notices.map((text) => h("p", { class: "notice" }, worded(text))),
      ...(this.modelActions ? [modelMenu(this.news, this.modelActions)] : []),
    );
    this.chip.disabled = this.card.childElementCount === 0;
  }

  /** How full the window is with what is being written, as the composer's gauge reads it; null: nobody knows. */
  context(reading) {
    this.meter.hidden = !reading;
    if (!reading) return;
    const { used, limit, draft } = reading;
    const share = Math.min(1, used / limit);
    this.meterText.textContent = `${short(used)} / ${short(limit)}`;
    this.meterBar.firstChild.style.width = `${share * 100}%`;
    this.meter.classList.toggle("nearly", share > 0.85);
    const label = t(draft > 0 ? "context.draft" : "context", { used, limit, draft });
    this.meter.title = label;
    this.meter.setAttribute("aria-label", label);
  }

  /** From the system's colours first to those it does not have, so that each click but one changes what is seen. */
  nextTheme() {
    const order = isDarkSystem() ? ["system", "light", "dark"] : ["system", "dark", "light"];
    this.setTheme(order[(order.indexOf(this.chosen) + 1) % order.length]);
    localStorage.setItem("octavo-theme", this.chosen);
  }

  /** What config.yaml says, unless this browser chose for itself. */
  configuredTheme(theme) {
    if (localStorage.getItem("octavo-theme") === null) this.setTheme(theme);
  }

  setTheme(theme) {
    this.chosen = theme;
    const root = document.documentElement;
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    const dark = theme === "dark" || (theme === "system" && isDarkSystem());
    document.body.classList.toggle("dark", dark); // Gradio's own mark
    this.theme.replaceChildren(icon(THEME_ICONS[theme]));
    this.theme.title = t(`theme.${theme}`);
    this.theme.setAttribute("aria-label", this.theme.title);
  }
}

function isDarkSystem() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}
