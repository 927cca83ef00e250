// The list of chats on the left: search, folders, groups by day, a live dot and a Stop on those that are writing.

import { Row } from "./chat_row.js";
import { h, icon, iconButton } from "./dom.js";
import { openMenu } from "./menu.js";
import { t } from "./words.js";

const ROWS_AT_ONCE = 150; // drawn at first, and added whenever the end of the list comes into sight
const DAY_MS = 86_400_000;
const SEARCH_AFTER_MS = 100; // without a key
const FOLDED_KEY = "octavo-folded"; // names of folders that are closed

export class ChatList {
  /**
   * `actions`: open(id, message, words), create(), createTemporary(), hide(), stop(id), update(id, values), organize(id),
   * delete(id), keep(id), export(id, format), import(), search(text).
   */
  constructor(panel, actions) {
    this.actions = actions;
    this.chats = new Map(); // id: as unpack() makes them
    this.rows = new Map();
    this.heads = new Map(); // heading elements by group
    this.current = null;
    this.limit = ROWS_AT_ONCE;
    this.isCut = false; // there is more than is drawn
    this.drawing = false;
    this.folded = new Set(JSON.parse(localStorage.getItem(FOLDED_KEY) ?? "[]"));
    this.found = null; // {text, hits: Map of id to {message, snippet}} as the server says
    this.filter = h("input", {
      type: "search",
      class: "filter",
      placeholder: t("chats.filter"),
      "aria-label": t("chats.filter"),
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.typed(),
      onkeydown: (event) => this.key(event),
    });
    this.list = h("div", { class: "rows", role: "list", "aria-label": t("chats") });
    this.end = h("div", { class: "rows-end" });
    new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting || !this.isCut) return;
      this.limit += ROWS_AT_ONCE;
      this.draw();
    }).observe(this.end);
    this.count = h("div", { class: "offscreen", role: "status" });
    const create = h("button", { type: "button", class: "create", onclick: () => actions.create() }, icon("plus"), t("chats.new"));
    create.append(h("kbd", {}, /Mac|iP(hone|ad)/.test(navigator.platform) ? "⌘K" : "Ctrl K"));
    const temporary = iconButton("ghost", t("chats.temporary"), () => actions.createTemporary(), { class: "quiet temporary" });
    const top = h(
      "div",
      { class: "brand" },
      h("img", { src: "/ui/icon.svg", alt: "", width: 24, height: 24 }),
      h("span", {}, "Octavo"),
      iconButton("close", t("chats.close"), () => actions.hide(), { class: "quiet only-narrow" }),
    );
    this.tools = iconButton("more", t("chats.all"), () => this.openTools(), { class: "quiet all" });
    const box = h("label", { class: "filter-box" }, icon("search"), this.filter);
    panel.setAttribute("role", "navigation");
    panel.setAttribute("aria-label", t("chats"));
    panel.append(
      top,
      h("div", { class: "creating" }, create, temporary),
      h("div", { class: "finding" }, box, this.tools),
      this.list,
      this.count,
    );
  }

  get(id) {
    return this.chats.get(id);
  }

  /** Names of the folders, in order. */
  get folders() {
    const names = new Set([...this.chats.values()].map((chat) => chat.folder).filter(Boolean));
    return [...names].sort((a, b) => a.localeCompare(b));
  }

  get writing() {
    return [...this.chats.values()].filter((chat) => chat.writing);
  }

  apply(message) {
    if (message.k === "list") this.chats = new Map(message.chats.map((chat) => [chat[0], unpack(chat)]));
    else if (message.k === "listed") this.chats.set(message.chat[0], unpack(message.chat));
    else this.chats.delete(message.chat);
    this.draw();
  }

  select(id) {
    this.current = id;
    this.draw();
  }

  /** Octavo was closed: nothing is being written any more. */
  freeze() {
    for (const chat of this.writing) this.chats.set(chat.id, { ...chat, writing: false });
    this.draw();
  }

  focusSearch() {
    this.filter.focus();
    this.filter.select();
  }

  /** The chat above or below the open one. */
  neighbour(step) {
    const ids = this.sections().flatMap(({ name, chats }) => (this.folded.has(name) ? [] : chats.map((chat) => chat.id)));
    const at = ids.indexOf(this.current);
    return ids[at < 0 ? 0 : Math.max(0, Math.min(ids.length - 1, at + step))] ?? null;
  }

  // Search

  get wanted() {
    return this.filter.value.trim();
  }

  typed() {
    clearTimeout(this.timer);
    this.limit = ROWS_AT_ONCE;
    if (!this.wanted) this.found = null;
    if (!this.wanted) this.count.textContent = "";
    else this.timer = setTimeout(() => this.actions.search(this.wanted), SEARCH_AFTER_MS);
    this.draw();
  }

  key(event) {
    if (event.isComposing) return;
    if (event.key === "Escape" && this.filter.value) {
      event.stopPropagation();
      this.filter.value = "";
      this.typed();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      const link = this.list.querySelector("a.chat-link");
      if (event.key === "Enter") link?.click();
      else link?.focus();
    }
  }

  /** What was looked for without a connection, or was not answered any more, is asked for now. */
  connectionBack() {
    if (this.wanted && this.found?.text !== this.wanted) this.actions.search(this.wanted);
  }

  /** The server's answer to a search. */
  searched(message) {
    if (message.text !== this.wanted) return;
    const hits = message.hits.map(([id, turn, snippet]) => [id, { message: turn, snippet, wanted: message.text }]);
    this.found = { text: message.text, hits: new Map(hits) };
    this.count.textContent = t("chats.found", { n: hits.length });
    this.draw();
  }

  /** Until the server has answered, the titles that match; then what it found. */
  hits() {
    const known = this.found?.text === this.wanted ? this.found.hits : null;
    if (known) return [...known].filter(([id]) => this.chats.has(id)).map(([id, hit]) => ({ ...this.chats.get(id), hit }));
    const words = this.wanted.toLocaleLowerCase().split(/\s+/);
    const named = (chat) => `${chat.title}\n${chat.folder}\n${chat.tags.join("\n")}`.toLocaleLowerCase();
    const tagged = (chat, start) => chat.tags.some((tag) => tag.toLocaleLowerCase().startsWith(start));
    const matching = (chat, word) => (/^#./.test(word) ? tagged(chat, word.slice(1)) : named(chat).includes(word));
    const matches = [...this.chats.values()].filter((chat) => words.every((word) => matching(chat, word)));
    return matches.sort(newest).map((chat) => ({ ...chat, hit: { message: null, snippet: "", wanted: this.wanted } }));
  }

  // Drawing

  /** Chats by group, in the order of the list. */
  sections() {
    if (this.wanted) return [{ name: null, title: null, chats: this.hits() }];
    const groups = new Map([["temporary", []], ["pinned", []]]);
    for (const folder of this.folders) groups.set(`folder:${folder}`, []);
    const today = new Date().setHours(0, 0, 0, 0);
    for (const chat of [...this.chats.values()].sort(newest)) {
      const name = groupOf(chat, today);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(chat);
    }
    return [...groups]
      .filter(([, chats]) => chats.length)
      .map(([name, chats]) => ({ name, title: name.startsWith("folder:") ? name.slice(7) : t(`chats.${name}`), chats }));
  }

  /** Soon, once for all changes of a moment. */
  draw() {
    if (this.drawing) return;
    this.drawing = true;
    queueMicrotask(() => {
      this.drawing = false;
      this.drawNow();
    });
  }

  drawNow() {
    const nodes = [];
    let left = this.limit;
    this.isCut = false;
    for (const { name, title, chats } of this.sections()) {
      if (left <= 0) {
        this.isCut = true;
        break;
      }
      const folded = this.folded.has(name);
      if (title !== null) nodes.push(this.head(name, title, folded));
      if (folded) continue;
      for (const chat of chats.slice(0, left)) nodes.push(this.row(chat));
      left -= chats.length;
      this.isCut = left < 0;
    }
    if (!nodes.length) {
      const waits = this.wanted && this.found?.text !== this.wanted;
      const words = !this.wanted ? "chats.none" : waits ? "chats.searching" : "chats.nomatch";
      nodes.push(h("p", { class: "none" }, t(words)));
    }
    for (const id of this.rows.keys()) if (!this.chats.has(id)) this.rows.delete(id);
    nodes.push(this.end);
    const rows = () => [...this.list.querySelectorAll(".row-chat")];
    const focused = rows().findIndex((row) => row.contains(document.activeElement));
    place(this.list, nodes);
    if (focused >= 0 && document.activeElement === document.body) rows().slice(0, focused + 1).at(-1)?.querySelector("a")?.focus();
  }

  row(chat) {
    let row = this.rows.get(chat.id);
    if (!row) this.rows.set(chat.id, (row = new Row(chat.id, this.actions)));
    row.update(chat, chat.id === this.current, chat.hit ?? null);
    return row.element;
  }

  /** Folders open and close; days are plain headings. */
  head(name, title, folded) {
    let head = this.heads.get(name);
    if (!head) {
      const isFolder = name.startsWith("folder:");
      const button = h("button", { type: "button", onclick: () => this.fold(name) }, icon("chevron"), icon("folder"), h("span", { dir: "auto" }, title));
      head = isFolder ? h("h2", { class: "group folder" }, button) : h("h2", { class: "group" }, title);
      this.heads.set(name, head);
    }
    head.querySelector("button")?.setAttribute("aria-expanded", String(!folded));
    return head;
  }

  fold(name) {
    if (!this.folded.delete(name)) this.folded.add(name);
    localStorage.setItem(FOLDED_KEY, JSON.stringify([...this.folded]));
    this.draw();
  }

  openTools() {
    openMenu(this.tools, [
      { label: t("chats.import"), icon: "upload", run: () => this.actions.import() },
      { label: t("chats.export.all.json"), icon: "download", run: () => this.actions.export(null, "json") },
      { label: t("chats.export.all.markdown"), icon: "download", run: () => this.actions.export(null, "markdown") },
    ]);
  }
}

/** A line as the server packs it (app/ui/hub.py). */
function unpack([id, title, updated, writing, pinned, folder, tags, model]) {
  return { id, title, updated, writing, pinned, folder, tags, model, temporary: id.startsWith("tmp-") };
}

const newest = (a, b) => b.updated - a.updated;

/** `today`: when it began, in ms. */
function groupOf(chat, today) {
  if (chat.temporary) return "temporary";
  if (chat.pinned) return "pinned";
  if (chat.folder) return `folder:${chat.folder}`;
  const at = chat.updated * 1000;
  if (at >= today) return "today";
  if (at >= today - DAY_MS) return "yesterday";
  return at >= today - 7 * DAY_MS ? "week" : "older";
}

/** Make `nodes` the children of `parent`, moving only those that are elsewhere; a moved row keeps its focus. */
function place(parent, nodes) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const wanted = new Set(nodes);
  for (const child of [...parent.childNodes]) if (!wanted.has(child)) child.remove();
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
}
