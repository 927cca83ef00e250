// Who is to reply, where another model is loaded than the one that wrote the chat so far. Nothing switches by itself.

import { confirm } from "./dialog.js";
import { h } from "./dom.js";
import { modelTitle, shownModel, t } from "./words.js";

export class ModelQuestion {
  /** `actions`: use(), change(), writing() the chats that are writing now. It is drawn before `place`. */
  constructor(place, actions) {
    this.actions = actions;
    this.chat = null;
    this.model = null;
    this.element = h("div", { class: "model-question", role: "status", hidden: true });
    place.before(this.element);
  }

  /** `chat` as the list has it, or null; `model` as the server says it. */
  show(chat, model = this.model) {
    this.chat = chat;
    this.model = model;
    const loaded = model?.state === "ready" || model?.state === "loading" ? model.id : null;
    const asks = Boolean(chat?.model) && Boolean(model) && chat.model !== model.id && model.state !== "unloading";
    this.element.hidden = !asks || (loaded === null && model.state === "loading");
    if (this.element.hidden) {
      this.element.replaceChildren();
      return;
    }
    this.named = loaded && modelTitle(loaded) === modelTitle(chat.model) ? shownModel : modelTitle; // two of one name
    const names = { chat: this.named(chat.model), loaded: loaded && this.named(loaded) };
    const text = t(!loaded ? "question.none" : model.state === "ready" ? "question.other" : "question.loading", names);
    if (this.element.firstChild?.textContent === text) return;
    const way = (label, onclick) => h("button", { type: "button", class: "plain", onclick }, label);
    const stay = loaded && way(t("question.stay", names), () => this.actions.use());
    const change = way(t("question.change", names), () => this.load());
    this.element.replaceChildren(h("p", {}, text), h("div", { class: "ways" }, stay || "", change));
  }

  async load() {
    const writing = this.actions.writing();
    const text = t("question.stops", { n: writing.length, titles: writing.map((chat) => chat.title || t("chats.untitled")).join(", ") });
    if (writing.length && !(await confirm({ title: t("question.sure"), text, yes: t("question.change", { chat: this.named(this.chat.model) }) }))) return;
    this.actions.change();
  }
}
