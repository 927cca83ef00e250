// A box in which a turn is written anew. The text stays in it until it is stored elsewhere.

import { h } from "./dom.js";
import { t } from "./words.js";

export class Editor {
  /**
   * `send(text)` may be a promise, whose failure is shown; `end()` is called when the box has gone. With `enterSends`
   * Enter alone is enough, else it breaks the line and Ctrl or Cmd must be held.
   */
  constructor(text, { yes, about, send, end, mayBeEmpty = false, enterSends = false }) {
    this.send = send;
    this.end = end;
    this.mayBeEmpty = mayBeEmpty;
    this.enterSends = enterSends;
    this.area = h("textarea", { rows: "1", dir: "auto", "aria-label": about, onkeydown: (event) => this.key(event), oninput: () => this.fit() });
    this.area.value = text;
    this.note = h("p", { class: "note", role: "alert" });
    this.yes = h("button", { type: "button", class: "primary", onclick: () => this.finish() }, yes);
    const no = h("button", { type: "button", class: "plain", onclick: () => this.close() }, t("turn.cancel"));
    this.element = h("div", { class: "editor" }, this.area, h("div", { class: "choices" }, this.note, no, this.yes));
  }

  focus() {
    this.fit();
    this.area.focus();
    this.area.setSelectionRange(this.area.value.length, this.area.value.length);
    this.element.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      this.close();
    } else if (event.key === "Enter" && !event.shiftKey && !event.altKey && (this.enterSends || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.finish();
    }
  }

  async finish() {
    const text = this.area.value;
    if ((!text.trim() && !this.mayBeEmpty) || this.yes.disabled) return;
    this.yes.disabled = true;
    try {
      if ((await this.send(text)) === false) throw new Error("");
      this.close();
    } catch (error) {
      this.note.textContent = error.message;
      this.yes.disabled = false;
    }
  }

  close() {
    if (!this.element.isConnected) return;
    this.element.remove();
    this.end();
  }

  fit() {
    this.area.style.height = "auto";
    this.area.style.height = `${Math.min(this.area.scrollHeight + 2, innerHeight * 0.5)}px`;
  }
}
