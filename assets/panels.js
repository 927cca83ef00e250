// The drawer beside the conversation. Which panel is open is in the address (#settings/engine); its script and style are
// fetched when it is first opened. The conversation goes on behind it.

import { ask } from "./api.js";
import { confirm, toast } from "./dialog.js";
import { h, iconButton } from "./dom.js";
import { t } from "./words.js";

const NARROWEST_PX = 240; // of a conversation that can still be read

export class Panels {
  /** `names`: the panels there are. `context`: nav, say(command), chat(), openChat(id). */
  constructor(element, names, context) {
    this.names = new Set(names);
    this.context = context;
    this.element = element;
    this.current = null; // {name, module, root}
    this.wanted = null;
    this.values = new Map(); // what the server pinned up for all tabs
    this.listeners = new Map();
    this.title = h("h1", { tabindex: "-1" });
    this.widen = iconButton("widen", t("panel.widen"), () => this.setWide(!this.wide), { class: "quiet widen" });
    this.body = h("div", { class: "panel-body" });
    const close = iconButton("close", t("panel.close"), () => this.close(), { class: "quiet shut" });
    element.setAttribute("role", "complementary");
    element.append(h("div", { class: "panel-top" }, this.title, h("span", { class: "space" }), this.widen, close), this.body);
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      this.close();
    });
    this.setWide(localStorage.getItem("octavo-panel-wide") === "yes");
    addEventListener("hashchange", () => this.follow());
    this.follow();
  }

  /** The panel's name in the address and what stands behind it. */
  get place() {
    const [name, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
    return { name: this.names.has(name) ? name : null, path: rest.join("/") };
  }

  get isOpen() {
    return this.place.name !== null;
  }

  /** Whether the open panel lies over the conversation, but for a strip of it. */
  get covers() {
    if (!this.isOpen) return false;
    const conversation = document.getElementById("octavo-main").getBoundingClientRect();
    return this.element.getBoundingClientRect().left - conversation.left < NARROWEST_PX;
  }

  go(name, path = "") {
    const place = `#${path ? `${name}/${path}` : name}`;
    if (location.hash === place) this.follow(); // the reader may have scrolled away from it
    else location.hash = place;
  }

  close() {
    const { name } = this.place;
    if (name === null) return;
    history.pushState(null, "", location.pathname + location.search);
    this.follow();
    this.context.nav.focus(name);
  }

  toggle(name) {
    if (this.place.name === name) this.close();
    else this.go(name);
  }

  async follow() {
    const { name, path } = this.place;
    this.context.nav.select(name);
    document.body.classList.toggle("panel-open", name !== null);
    if (this.current?.name === name) {
      this.current.module?.route?.(path);
      return;
    }
    this.leave();
    this.wanted = name;
    if (name === null) return;
    const root = h("div", { class: `panel panel-${name}` });
    this.title.textContent = t(`nav.${name}`);
    this.element.setAttribute("aria-label", this.title.textContent);
    this.body.replaceChildren(root);
    this.current = { name, module: null, root };
    this.title.focus({ preventScroll: true });
    try {
      const [module] = await Promise.all([import(`./panels/${name}.js`), this.styled(name)]);
      if (this.wanted !== name || this.current?.root !== root) return;
      this.current.module = module;
      await module.open(root, this.services(path));
    } catch (error) {
      console.warn(error);
      root.replaceChildren(h("p", { class: "trouble", role: "alert" }, error.status === undefined ? t("panel.failed") : error.message));
    }
  }

  leave() {
    this.current?.module?.close?.();
    for (const off of this.current?.off ?? []) off();
    this.current = null;
    this.body.replaceChildren();
    this.body.scrollTop = 0;
  }

  /** What anything on the page may use. */
  get common() {
    return {
      t,
      toast,
      confirm,
      /** The JSON of a GET; throws Failure. */
      get: (address, options) => ask(address, options),
      /** Send JSON and return the answer's; throws Failure. */
      send: (address, body = {}, method = "POST") => ask(address, { method, body }),
      say: this.context.say,
      chat: this.context.chat,
      openChat: this.context.openChat,
      go: (name, rest) => this.go(name, rest),
    };
  }

  /** What a panel may use of the page while it is open. */
  services(path) {
    const { current } = this;
    current.off = [];
    return {
      ...this.common,
      path,
      /** Hear a value that the server pins up for all tabs, from now until the panel closes. */
      on: (name, callback) => current.off.push(this.on(name, callback)),
      badge: (text, label) => this.context.nav.badge(current.name, text, label),
    };
  }

  styled(name) {
    const href = `/ui/panels/${name}.css`;
    if (document.querySelector(`link[href="${href}"]`)) return null;
    return new Promise((resolve) => {
      document.head.append(h("link", { rel: "stylesheet", href, onload: resolve, onerror: resolve }));
    });
  }

  setWide(wide) {
    this.wide = wide;
    document.body.classList.toggle("panel-wide", wide);
    const label = t(wide ? "panel.narrow" : "panel.widen");
    this.widen.title = label;
    this.widen.setAttribute("aria-label", label);
    this.widen.setAttribute("aria-pressed", String(wide));
    localStorage.setItem("octavo-panel-wide", wide ? "yes" : "no");
  }

  /** The server has something new for all tabs. */
  board({ name, value }) {
    this.values.set(name, value);
    for (const callback of this.listeners.get(name) ?? []) callback(value);
  }

  on(name, callback) {
    if (!this.listeners.has(name)) this.listeners.set(name, new Set());
    this.listeners.get(name).add(callback);
    if (this.values.has(name)) callback(this.values.get(name));
    return () => this.listeners.get(name).delete(callback);
  }
}
