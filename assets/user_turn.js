// A turn of the user: the text as it was typed, its files, and another version of it.

import { sentFiles } from "./attachments.js";
import { h, iconButton } from "./dom.js";
import { Editor } from "./editor.js";
import { Versions } from "./versions.js";
import { dayAndTime, moment, t } from "./words.js";

export class UserTurn {
  /** `actions`: resend(id, text), version(id, step), ask(id) for a reply, remove(id). */
  constructor(turn, actions) {
    this.id = turn.id;
    this.text = turn.text;
    this.hasFiles = Boolean(turn.files?.length);
    this.actions = actions;
    this.versions = new Versions((step) => actions.version(this.id, step));
    this.bubble = turn.text ? h("div", { class: "bubble", dir: "auto" }, turn.text) : null;
    this.editButton = iconButton("pencil", t("turn.edit"), () => this.edit());
    const ask = iconButton("retry", t("turn.ask"), () => actions.ask(this.id), { class: "quiet ask" });
    const remove = iconButton("bin", t("turn.remove"), () => actions.remove(this.id));
    this.tools = h("div", { class: "tools" }, ask, this.editButton, remove, this.versions.element);
    this.element = h(
      "article",
      { class: "turn user", "data-id": turn.id, "aria-label": t("turn.you"), tabindex: "-1" },
      h("div", { class: "when", title: turn.at ? dayAndTime(turn.at) : null }, turn.at ? `${t("turn.you")} · ${moment(turn.at)}` : t("turn.you")),
      sentFiles(turn.id, turn.files),
      (this.said = h("div", { class: "said" }, this.bubble, this.tools)),
    );
    this.place(turn);
  }

  place({ version, versions }) {
    this.versions.show(version, versions);
  }

  edit() {
    if (this.editor) return;
    const { activeElement: before } = document; // the message box, where a key began this
    this.editor = new Editor(this.text, {
      yes: t("turn.resend"),
      about: t("turn.edit.about"),
      mayBeEmpty: this.hasFiles,
      enterSends: true,
      send: (text) => this.actions.resend(this.id, text),
      end: () => {
        this.editor = null;
        this.element.classList.remove("editing");
        (before?.matches("textarea") && before.isConnected ? before : this.editButton).focus({ preventScroll: true });
      },
    });
    this.element.classList.add("editing");
    this.said.after(this.editor.element);
    this.editor.focus();
  }
}
