// Where the user writes. A text leaves it only when the server has stored it.

import { h, icon } from "./dom.js";
import { nonce } from "./live.js";
import { t } from "./words.js";

const TALLEST_SHARE = 0.4; // of the window's height

export class Composer {
  /** `actions`: send({text, nonce}) returns false if it could not be sent; stop(). */
  constructor(panel, actions) {
    this.actions = actions;
    this.chat = null;
    this.writing = false;
    this.sending = null; // {nonce, text, chat} until the server answers
    this.text = h("textarea", {
      rows: "1",
      placeholder: t("composer.placeholder"),
      "aria-label": t("composer.label"),
      "aria-describedby": "composer-hint",
      dir: "auto",
      autocomplete: "off",
      enterkeyhint: "send",
      oninput: () => this.changed(),
      onkeydown: (event) => this.key(event),
    });
    this.button = h("button", { type: "submit", class: "send" });
    this.box = h("form", { class: "box" }, this.text, this.button);
    this.box.onsubmit = (event) => {
      event.preventDefault();
      if (this.writing) actions.stop();
      else this.send();
    };
    this.box.addEventListener("click", (event) => {
      if (event.target === this.box) this.text.focus();
    });
    this.hint = h("p", { class: "hint", id: "composer-hint", "aria-live": "polite" });
    panel.append(this.box, this.hint);
    this.say(null);
    this.update();
  }

  focus() {
    this.text.focus({ preventScroll: true });
  }

  /** Turn to another chat (null: a new one): its draft comes back. */
  open(chat) {
    this.chat = chat;
    this.text.value = sessionStorage.getItem(this.draftKey) ?? "";
    this.say(null);
    this.fit();
    this.update();
  }

  setWriting(writing) {
    if (writing === this.writing) return;
    this.writing = writing;
    this.say(null);
    this.update();
  }

  put(text) {
    this.text.value = text;
    this.changed();
    this.focus();
  }

  get draftKey() {
    return `octavo-draft-${this.chat ?? ""}`;
  }

  changed() {
    if (this.text.value) sessionStorage.setItem(this.draftKey, this.text.value);
    else sessionStorage.removeItem(this.draftKey);
    this.say(null);
    this.fit();
    this.update();
  }

  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.altKey) return;
    if (event.isComposing || event.keyCode === 229) return; // confirms a candidate of an input method
    event.preventDefault();
    if (this.writing) this.say(t("composer.busy"));
    else this.send();
  }

  send() {
    const text = this.text.value;
    if (!text.trim() || this.sending) return;
    // The same text for the same chat is the same sending: if an answer was lost, the server knows it by its name.
    const again = this.lost && this.lost.text === text && this.lost.chat === this.chat;
    this.sending = again ? this.lost : { nonce: nonce(), text, chat: this.chat };
    if (!this.actions.send(this.sending)) {
      this.sending = null;
      this.say(t("composer.offline"));
    }
    this.update();
  }

  /** The server has stored it. */
  sent(message) {
    if (this.sending?.nonce !== message.nonce) return false;
    const { chat, text } = this.sending;
    this.sending = this.lost = null;
    sessionStorage.removeItem(`octavo-draft-${chat ?? ""}`);
    if (this.chat === chat && this.text.value === text) this.text.value = "";
    this.fit();
    this.update();
    return true;
  }

  refused(message) {
    if (this.sending?.nonce === message.nonce) this.sending = null;
    if (this.lost?.nonce === message.nonce) this.lost = null;
    this.say([message.message, message.remedy].filter(Boolean).join(" "), true);
    this.update();
  }

  connectionLost() {
    this.lost = this.sending ?? this.lost;
    this.sending = null;
    this.update();
  }

  say(text, isError = false) {
    this.hint.textContent = text ?? t("composer.hint");
    this.hint.classList.toggle("error", isError);
    this.hint.classList.toggle("idle", text === null);
  }

  fit() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight, innerHeight * TALLEST_SHARE)}px`;
  }

  update() {
    const label = t(this.writing ? "composer.stop" : "composer.send");
    if (this.button.dataset.shows !== label) {
      this.button.replaceChildren(icon(this.writing ? "stop" : "send"));
      this.button.dataset.shows = label;
      this.button.setAttribute("aria-label", label);
      this.button.title = this.writing ? `${label} (Esc)` : label;
    }
    this.button.classList.toggle("stops", this.writing);
    this.button.disabled = !this.writing && (!this.text.value.trim() || this.sending !== null);
  }
}
