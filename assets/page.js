// The page's own script: puts the panels together and keeps them on one chat, whose id is in the address.

import { announce } from "./dom.js";
import { ChatList } from "./chats.js";
import { Chatting } from "./chatting.js";
import { Composer } from "./composer.js";
import { toast } from "./dialog.js";
import { Header } from "./header.js";
import { Live, nonce } from "./live.js";
import { ModelQuestion } from "./model_question.js";
import { fetchModel, loadModel, unloadModel, wakeModel } from "./model_actions.js";
import { Nav } from "./nav.js";
import { tellOnce } from "./news.js";
import { Panels } from "./panels.js";
import { rest, wake } from "./rest.js";
import { onShortcut } from "./shortcuts.js";
import { Talk } from "./talk.js";
import { Welcome } from "./welcome.js";
import { build, language, panels as panelNames } from "./strings.js";
import { t, worded } from "./words.js";

const PARTS = ["octavo-nav", "octavo-chats", "octavo-header", "octavo-talk", "octavo-composer", "octavo-panel"];
const LOST_AFTER_MS = 1000; // without a connection; shorter breaks are nothing to trouble anyone with
const LIST_MESSAGES = new Set(["list", "listed", "unlisted"]);

class Page {
  constructor([nav, chats, header, talk, composer, panel]) {
    this.chat = new URLSearchParams(location.search).get("c");
    this.ending = null; // how the server said it would end: "closed" or "again"
    this.sources = new Map(); // nonce: what waits for a reply's Markdown
    this.live = new Live({
      onMessage: (message) => this.take(message),
      onOpen: () => this.connected(),
      onClose: () => this.disconnected(),
    });
    const say = (command) => this.live.say(command);
    this.header = new Header(header, { showList: () => this.showList(true) });
    this.chatting = new Chatting({
      say,
      open: (id) => this.open(id),
      chat: () => this.chat,
      list: () => this.list,
      talk: () => this.talk,
      models: () => this.models,
    });
    this.list = new ChatList(chats, {
      ...this.chatting.listActions,
      create: () => this.open(null),
      hide: () => this.showList(false),
    });
    this.talk = new Talk(
      talk,
      {
        ...this.chatting.talkActions,
        source: (id) => this.source(id),
        earlier: (chat) => say({ k: "earlier", chat }),
      },
      () => this.talkChanged(),
    );
    this.composer = new Composer(composer, {
      send: (sending) => say({ k: "send", ...sending, after: this.talk.lastOf(sending.chat) }),
      isTemporary: () => this.chatting.takesTemporary(this.chat),
      stop: () => say({ k: "stop", chat: this.chat }),
      reading: (reading) => this.header.context(reading),
      go: (name, path) => this.panels.go(name, path),
    });
    this.question = new ModelQuestion(this.composer.box, {
      use: () => say({ k: "use-model", chat: this.chat }),
      change: () => say({ k: "switch-model", chat: this.chat }),
      writing: () => this.list.writing,
    });
    this.welcome = new Welcome(this.talk.welcome, {
      put: (text) => this.composer.put(text),
      load: () => say({ k: "load" }),
      cancel: () => say({ k: "cancel" }),
      get: (id, quantization) => fetchModel(id, { load: true, quantization }),
      starter: () => loadModel("starter"),
      wake: () => wakeModel(),
      models: () => this.panels.go("models", "get"),
    });
    this.nav = new Nav(nav, panelNames, {
      chats: () => this.showChats(),
      open: (name) => {
        this.showList(false);
        this.panels.toggle(name);
      },
    });
    this.panels = new Panels(panel, panelNames, {
      nav: this.nav,
      say,
      chat: () => this.chat,
      openChat: (id) => this.open(id),
    });
    this.panels.on("settings", (value) => this.settingsChanged(value));
    this.panels.on("models", (value) => this.modelsChanged(value));
    this.panels.on("ending", (how) => {
      this.ending = how;
      this.header.ending(how);
    });
    this.panels.on("news", (items) => items.forEach(tellOnce));
    this.shade = chats.parentElement;
    this.shade.addEventListener("click", (event) => event.target === this.shade && this.showList(false));
    document.addEventListener("keydown", (event) => this.key(event));
    this.addShortcuts();
    addEventListener("popstate", () => this.open(new URLSearchParams(location.search).get("c"), { address: false }));
    this.show();
    this.live.connect();
    this.composer.focus();
  }

  /** Turn to a chat (null: a new one). What is being written elsewhere goes on. */
  open(id, { address = true } = {}) {
    this.showList(false);
    if (address && this.panels.covers) this.panels.close(); // what is asked for would stay unseen behind it
    if (id !== this.chat || !this.talk.chat) {
      this.chat = id;
      if (address) history.pushState(null, "", addressOf(id));
      this.show();
      this.ask();
    }
    if (!matchMedia("(pointer: coarse)").matches) this.composer.focus();
  }

  show() {
    this.chatting.opened();
    this.position = this.talk.show(this.chat);
    this.composer.open(this.chat);
    this.list.select(this.chat);
    this.question.show(this.list.get(this.chat));
    this.titled();
  }

  /** Tell the server which chat this tab shows, and how much of it. */
  ask() {
    this.live.say({ k: "open", chat: this.chat, have: this.talk.chat?.position ?? null });
  }

  connected() {
    clearTimeout(this.losing);
    this.ending = this.losing = null;
    wake();
    this.header.connected(true);
    this.ask();
    this.list.connectionBack();
  }

  /** The connection was lost, or could not be made once more. */
  disconnected() {
    this.header.connected(false);
    this.composer.connectionLost();
    this.chatting.connectionLost();
    if (this.ending === "closed") this.freeze();
    else this.losing ??= setTimeout(() => this.lost(), LOST_AFTER_MS);
    void this.checkKey();
    for (const waiting of this.sources.values()) waiting.reject(new Error("connection lost"));
    this.sources.clear();
  }

  /** Nothing is known of Octavo: whether it works, and whether it still writes. */
  lost() {
    this.talk.freeze(t("turn.lost"));
    this.list.freeze();
    this.header.lost();
    this.composer.setReach("lost");
  }

  /** Octavo was closed on purpose, and will not be back by itself. */
  freeze() {
    this.talk.freeze(t("said.closed"));
    this.list.freeze();
    this.header.closed();
    this.composer.setReach("closed");
    rest();
  }

  /** The key was changed: nothing here works until the new one is entered. */
  async checkKey() {
    const answer = await fetch("/api/enter").catch(() => null);
    if (answer?.status === 401) location.reload();
  }

  take(message) {
    if (LIST_MESSAGES.has(message.k)) {
      this.list.apply(message);
      if (message.k !== "unlisted") this.chatting.listed((message.chats ?? [message.chat]).map(([id]) => id));
      this.question.show(this.list.get(this.chat));
      this.titled();
      return;
    }
    if (this.chatting.take(message)) return;
    switch (message.k) {
      case "hello":
        this.header.configuredTheme(message.theme);
        if (this.isOurs(message.build)) this.composer.connectionBack();
        break;
      case "model":
        this.header.model(message);
        this.question.show(this.list.get(this.chat), message);
        this.composer.modelChanged(message);
        this.welcome.model(message);
        break;
      case "machine":
        this.welcome.machine(message);
        break;
      case "sent":
        if (!this.composer.sent(message)) break;
        if (message.created && this.chat === null) this.created(message.chat);
        else this.talk.follow();
        break;
      case "refused":
        this.composer.refused(message);
        break;
      case "gone":
        this.gone(message.chat);
        break;
      case "source":
        this.sources.get(message.nonce)?.resolve(message.text);
        this.sources.delete(message.nonce);
        break;
      case "board":
        this.panels.board(message);
        break;
      default:
        this.talk.apply(message);
    }
  }

  /** config.yaml was changed, here or by hand. */
  settingsChanged(value) {
    const services = this.panels.common;
    const run = (name) => async () => (await import("./panels/settings.js"))[name](services);
    this.header.settings(value, {
      reload: run("reloadModel"),
      restart: run("restartApp"),
      show: () => this.panels.go("settings"),
    });
  }

  /** Downloads, recent models, what is loaded. */
  modelsChanged(news) {
    const isNew = this.models !== undefined && news.error !== this.models.error;
    if (isNew && news.error && news.state === "ready") toast(worded(news.error), { kind: "error", keep: true });
    this.models = news;
    this.welcome.models(news);
    this.header.models(news, {
      load: ({ id, context_length, quantization }) => loadModel(id, { context_length, quantization }),
      models: () => this.panels.go("models"),
      unload: unloadModel,
    });
  }

  /** The server was updated: old files must not talk to it. Once only, should the browser insist on them. */
  isOurs(theirs) {
    if (theirs === build || sessionStorage.getItem("octavo-build") === theirs) return true;
    sessionStorage.setItem("octavo-build", theirs);
    location.reload();
    return false;
  }

  /** The first message of a new chat has made it a chat. */
  created(id) {
    this.chat = id;
    history.replaceState(null, "", addressOf(id));
    this.show();
  }

  gone(id) {
    this.talk.forget(id);
    if (id !== this.chat) return;
    const unsent = this.composer.text.value;
    this.chat = null;
    history.replaceState(null, "", addressOf(null));
    this.show();
    if (unsent && !this.composer.text.value) this.composer.put(unsent);
    this.composer.say(t("chats.gone"));
  }

  talkChanged() {
    if (!this.composer) return; // still being put together
    const was = this.composer.writing;
    this.composer.setWriting(this.talk.writing);
    this.composer.setTurns(this.talk.chat?.key ?? null);
    if (this.talk.writing && !was) announce(t("turn.writing"));
  }

  titled() {
    const title = this.list.get(this.chat)?.title;
    document.title = title ? `${title} · Octavo` : "Octavo";
  }

  source(id) {
    return new Promise((resolve, reject) => {
      const name = nonce();
      this.sources.set(name, { resolve, reject });
      if (!this.live.say({ k: "source", id, nonce: name })) reject(new Error("not connected"));
    });
  }

  /** The navigation's first place: back from a panel, else show or hide the list. */
  showChats() {
    if (this.panels.isOpen) this.panels.close();
    else if (matchMedia("(max-width: 800px)").matches) this.showList(false);
    else localStorage.setItem("octavo-list", document.body.classList.toggle("list-hidden") ? "hidden" : "shown");
  }

  showList(yes) {
    document.body.classList.toggle("list-shown", yes);
  }

  addShortcuts() {
    onShortcut("new", () => this.open(null));
    onShortcut("temporary", () => this.chatting.newTemporary());
    onShortcut("search", () => {
      this.showList(true);
      this.list.focusSearch();
    });
    onShortcut("focus", () => this.composer.focus());
    onShortcut("attach", () => this.composer.attach.click());
    onShortcut("presets", () => this.panels.toggle("presets"));
    onShortcut("settings", () => this.panels.toggle("settings"));
    onShortcut("edit", () => [...document.querySelectorAll("article.user .tools button:has(.icon-pencil)")].at(-1)?.click());
    onShortcut("copy", () => document.querySelector("article.reply.last footer button:has(.icon-copy)")?.click());
    onShortcut("code", () => [...document.querySelectorAll("article.reply .code-head button")].at(-1)?.click());
  }

  key(event) {
    if (event.defaultPrevented || event.isComposing) return;
    const command = event.ctrlKey || event.metaKey;
    if (event.altKey && !command && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      const id = this.list.neighbour(event.key === "ArrowUp" ? -1 : 1);
      if (id !== null) this.open(id);
    } else if (event.key === "Escape" && !document.querySelector("dialog[open], [popover]:popover-open")) {
      const stops = this.composer.writing && this.composer.box.contains(document.activeElement);
      if (document.body.classList.contains("list-shown")) this.showList(false);
      else if (this.panels.isOpen && !stops) this.panels.close();
      else if (this.composer.writing) this.live.say({ k: "stop", chat: this.chat });
    }
  }
}

/** The address of a chat; the open panel stays in it. */
function addressOf(id) {
  return (id === null ? "/" : `?c=${encodeURIComponent(id)}`) + location.hash;
}

/** Gradio draws the parts a moment after the document is there. */
function whenDrawn(start) {
  const parts = () => PARTS.map((id) => document.getElementById(id));
  const observer = new MutationObserver(() => begin());
  const begin = () => {
    const found = parts();
    if (found.includes(null)) return false;
    observer.disconnect();
    start(found);
    return true;
  };
  if (!begin()) observer.observe(document.body, { childList: true, subtree: true });
}

/** Gradio says its own language when it starts, which may be later than here. */
function keepLanguage() {
  if (document.documentElement.lang !== language) document.documentElement.lang = language;
}

new MutationObserver(keepLanguage).observe(document.documentElement, { attributes: true, attributeFilter: ["lang"] });
keepLanguage();
if (localStorage.getItem("octavo-list") === "hidden") document.body.classList.add("list-hidden");
whenDrawn((parts) => {
  new Page(parts);
  document.body.classList.add("octavo-ready");
  document.dispatchEvent(new Event("octavo-ready")); // for still.js
});
