// The list of chats on the left: grouped by day, a live dot and a Stop on those that are writing.

import { h, icon, iconButton } from "./dom.js";
import { dayAndTime, t } from "./words.js";

const ROWS_AT_ONCE = 150; // drawn at first, and added whenever the end of the list comes into sight
const DAY_MS = 86_400_000;

export class ChatList {
  /** `actions`: open(id), create(), stop(id), rename(id, title), delete(id). */
  constructor(panel, actions) {
    this.actions = actions;
    this.chats = new Map(); // id: {id, title, updated, writing}
    this.rows = new Map();
    this.current = null;
    this.limit = ROWS_AT_ONCE;
    this.drawing = false;
    this.filter = h("input", {
      type: "search",
      class: "filter",
      placeholder: t("chats.filter"),
      "aria-label": t("chats.filter"),
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.draw(),
    });
    this.list = h("div", { class: "rows", role: "list" });
    this.end = h("div", { class: "rows-end" });
    new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting || this.limit >= this.chats.size) return;
      this.limit += ROWS_AT_ONCE;
      this.draw();
    }).observe(this.end);
    this.dialog = this.makeDialog();
    const create = h("button", { type: "button", class: "create", onclick: () => actions.create() }, icon("plus"), t("chats.new"));
    create.append(h("kbd", {}, /Mac|iP(hone|ad)/.test(navigator.platform) ? "⌘K" : "Ctrl K"));
    const top = h(
      "div",
      { class: "brand" },
      h("img", { src: "/ui/icon.svg", alt: "", width: 24, height: 24 }),
      h("span", {}, "Octavo"),
      iconButton("close", t("chats.close"), () => actions.hide(), { class: "quiet only-narrow" }),
    );
    panel.setAttribute("role", "navigation");
    panel.setAttribute("aria-label", t("chats"));
    panel.append(top, create, h("label", { class: "filter-box" }, icon("search"), this.filter), this.list, this.dialog);
  }

  get(id) {
    return this.chats.get(id);
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

  /** The chat above or below the open one. */
  neighbour(step) {
    const ids = this.sorted().map((chat) => chat.id);
    const at = ids.indexOf(this.current);
    return ids[at < 0 ? 0 : Math.max(0, Math.min(ids.length - 1, at + step))] ?? null;
  }

  sorted() {
    const wanted = this.filter.value.trim().toLocaleLowerCase();
    const chats = [...this.chats.values()].sort((a, b) => b.updated - a.updated);
    return wanted ? chats.filter((chat) => chat.title.toLocaleLowerCase().includes(wanted)) : chats;
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
    const chats = this.sorted();
    const nodes = [];
    let group = null;
    for (const chat of chats.slice(0, this.limit)) {
      const name = groupOf(chat.updated);
      if (name !== group) nodes.push(h("h2", { class: "group" }, t((group = name))));
      nodes.push(this.row(chat));
    }
    if (nodes.length === 0) nodes.push(h("p", { class: "none" }, t(this.chats.size ? "chats.nomatch" : "chats.none")));
    for (const id of this.rows.keys()) if (!this.chats.has(id)) this.rows.delete(id);
    nodes.push(this.end);
    place(this.list, nodes);
  }

  row(chat) {
    let row = this.rows.get(chat.id);
    if (!row) {
      row = new Row(chat.id, this.actions, (id) => this.confirmDelete(id));
      this.rows.set(chat.id, row);
    }
    row.update(chat, chat.id === this.current);
    return row.element;
  }

  makeDialog() {
    this.question = h("p", {});
    const close = () => this.dialog.close();
    const yes = h("button", { type: "button", class: "danger" }, t("delete.yes"));
    yes.onclick = () => {
      close();
      this.actions.delete(this.doomed);
    };
    const no = h("button", { type: "button", class: "plain", onclick: close }, t("delete.no"));
    const title = h("h2", { id: "delete-title" }, t("delete.title"));
    return h("dialog", { "aria-labelledby": "delete-title" }, title, this.question, h("div", { class: "choices" }, no, yes));
  }

  confirmDelete(id) {
    this.doomed = id;
    this.question.textContent = t("delete.text", { title: this.get(id)?.title || t("chats.untitled") });
    this.dialog.showModal();
  }
}

class Row {
  constructor(id, actions, onDelete) {
    this.id = id;
    this.actions = actions;
    this.title = h("span", { class: "title", dir: "auto" });
    this.link = h("a", { href: `?c=${encodeURIComponent(id)}`, class: "link" }, h("i", { class: "dot" }), this.title);
    this.link.onclick = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return; // a new tab or window, as everywhere
      event.preventDefault();
      actions.open(id);
    };
    this.stop = iconButton("stop", t("chats.stop"), () => actions.stop(id), { class: "quiet stop" });
    const tools = [
      iconButton("pencil", t("chats.rename"), () => this.rename()),
      iconButton("bin", t("chats.delete"), () => onDelete(id)),
    ];
    this.element = h("div", { class: "row-chat", role: "listitem", "data-id": id }, this.link, h("span", { class: "tools" }, ...tools), this.stop);
  }

  update(chat, current) {
    this.chat = chat;
    this.title.textContent = chat.title || t("chats.untitled");
    this.link.title = `${this.title.textContent}\n${dayAndTime(chat.updated)}`;
    this.element.classList.toggle("writing", chat.writing);
    this.stop.hidden = !chat.writing;
    this.link.setAttribute("aria-label", chat.writing ? `${this.title.textContent}, ${t("chats.writing")}` : this.title.textContent);
    if (current) this.link.setAttribute("aria-current", "page");
    else this.link.removeAttribute("aria-current");
  }

  rename() {
    const input = h("input", { class: "rename", maxlength: "200", "aria-label": t("chats.rename") });
    input.value = this.chat.title;
    let over = false;
    const finish = (keep) => {
      if (over) return;
      over = true;
      input.replaceWith(this.link);
      const title = input.value.trim();
      if (keep && title && title !== this.chat.title) this.actions.rename(this.id, title);
    };
    input.onblur = () => finish(true);
    input.onkeydown = (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") finish(true);
      if (event.key === "Escape") finish(false);
      event.stopPropagation();
    };
    this.link.replaceWith(input);
    input.select();
  }
}

function unpack([id, title, updated, writing]) {
  return { id, title, updated, writing };
}

function groupOf(seconds) {
  const today = new Date().setHours(0, 0, 0, 0);
  const at = seconds * 1000;
  if (at >= today) return "chats.today";
  if (at >= today - DAY_MS) return "chats.yesterday";
  return at >= today - 7 * DAY_MS ? "chats.week" : "chats.older";
}

/** Make `nodes` the children of `parent`, moving only those that are elsewhere (a moved row would lose its focus). */
function place(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.childNodes]) if (!wanted.has(child)) child.remove();
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
}
