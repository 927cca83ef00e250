// One line of the list of chats: a link, what can be done with the chat, and its Stop while it is writing.

import { h, iconButton } from "./dom.js";
import { openMenu } from "./menu.js";
import { dayAndTime, t } from "./words.js";

export class Row {
  /** `actions` as ChatList has them. */
  constructor(id, actions) {
    this.id = id;
    this.actions = actions;
    this.found = null; // {message, snippet, wanted} while a search shows it
    this.title = h("span", { class: "title" });
    this.number = h("span", { class: "number" }); // of a copy: seen however long the title is
    this.more = h("span", { class: "more", dir: "auto", hidden: true });
    this.link = h(
      "a",
      { href: `?c=${encodeURIComponent(id)}`, class: "chat-link" },
      h("i", { class: "dot" }),
      h("span", { class: "texts" }, h("span", { class: "name", dir: "auto" }, this.title, this.number), this.more),
    );
    this.link.onclick = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return; // a new tab or window, as everywhere
      event.preventDefault();
      actions.open(id, this.found?.message ?? null, this.found?.wanted);
    };
    this.link.onkeydown = (event) => {
      if (event.key === "F2") this.rename();
      else if (event.key === "Delete") actions.delete(id);
    };
    this.stop = iconButton("stop", t("chats.stop"), () => this.stopWriting(), { class: "quiet stop" });
    this.menu = iconButton("more", t("chats.more"), () => this.openMenu(), { class: "quiet more-tools" });
    this.element = h("div", { class: "row-chat", role: "listitem", "data-id": id }, this.link, this.menu, this.stop);
    this.element.oncontextmenu = (event) => {
      if (event.target.closest("input")) return;
      event.preventDefault();
      this.openMenu();
    };
  }

  update(chat, current, found) {
    const isDrawn = this.chat === chat && this.current === current && this.found === null && found === null;
    if (isDrawn) return;
    this.chat = chat;
    this.current = current;
    this.found = found;
    const name = chat.title || t("chats.untitled");
    const [stem, number = ""] = name.split(/( \(\d{1,4}\)$)/);
    fill(this.title, stem, found?.wanted);
    this.number.textContent = number;
    const tags = chat.tags.map((tag) => `#${tag}`).join(" ");
    const folder = chat.pinned && chat.folder; // pinned, it does not stand under its folder's name
    const under = found?.snippet || [folder, tags].filter(Boolean).join(" · ");
    fill(this.more, under, found?.wanted);
    this.more.hidden = !under;
    this.link.title = [name, chat.folder, tags, chat.updated ? dayAndTime(chat.updated) : ""].filter(Boolean).join("\n");
    this.element.classList.toggle("writing", chat.writing);
    this.element.classList.toggle("pinned", chat.pinned);
    this.stop.hidden = !chat.writing;
    if (chat.writing) this.link.setAttribute("aria-label", `${name}, ${t("chats.writing")}`);
    else this.link.removeAttribute("aria-label");
    if (current) this.link.setAttribute("aria-current", "page");
    else this.link.removeAttribute("aria-current");
  }

  /** The button goes when the reply ends: the keyboard stays in this row. */
  stopWriting() {
    this.actions.stop(this.id);
    this.link.focus({ preventScroll: true });
  }

  openMenu() {
    const { chat, actions, id } = this;
    const items = [
      { label: t("chats.rename"), icon: "pencil", run: () => this.rename() },
      { label: t(chat.pinned ? "chats.unpin" : "chats.pin"), icon: "pin", run: () => actions.update(id, { pinned: !chat.pinned }) },
      { label: t("chats.folder"), icon: "folder", run: () => actions.organize(id) },
      null,
      { label: t("chats.export.markdown"), icon: "download", run: () => actions.export(id, "markdown") },
      { label: t("chats.export.json"), icon: "download", run: () => actions.export(id, "json") },
      null,
      { label: t("chats.delete"), icon: "bin", run: () => actions.delete(id), danger: true },
    ];
    if (chat.temporary) items.splice(1, 2, { label: t("chats.keep"), icon: "check", run: () => actions.keep(id) });
    openMenu(this.menu, items);
  }

  rename() {
    const input = h("input", { class: "rename", maxlength: "200", "aria-label": t("chats.rename") });
    input.value = this.chat.title;
    let over = false;
    const finish = (keep) => {
      if (over) return;
      over = true;
      const focused = document.activeElement === input;
      input.replaceWith(this.link);
      if (focused) this.link.focus({ preventScroll: true });
      const title = input.value.trim();
      if (keep && title && title !== this.chat.title) this.actions.update(this.id, { title });
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

/** Text with the wanted words marked. */
function fill(element, text, wanted) {
  const words = (wanted ?? "").split(/\s+/).filter((word) => word && word !== "#");
  const terms = words.map((term) => term.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!terms.length) {
    element.textContent = text;
    return;
  }
  const parts = text.split(new RegExp(`(${terms.join("|")})`, "giu"));
  element.replaceChildren(...parts.map((part, at) => (at % 2 ? h("mark", {}, part) : part)));
}
