// What was sent and is not known to be stored: it goes out, and goes out again, as soon as there is a connection. It is
// kept for a reload of the page too.

import { keep, kept } from "./kept.js";

const KEY = "octavo-outbox";

export class Outbox {
  constructor() {
    this.items = kept(KEY); // {nonce, text, chat, files, settings, temporary, again}, at most one of a chat
  }

  /** What was sent in a chat (null: in the new one). */
  of(chat) {
    return this.items.find((item) => item.chat === chat) ?? null;
  }

  /** It takes the place of what the same chat had here. */
  put(sending) {
    this.items = [...this.items.filter((item) => item.chat !== sending.chat), sending];
    this.save();
  }

  /** It was stored or refused, or is not to be sent any more. */
  drop(sending) {
    if (!this.items.includes(sending)) return;
    this.items = this.items.filter((item) => item !== sending);
    this.save();
  }

  save() {
    keep(KEY, this.items.length ? JSON.stringify(this.items) : "");
  }
}
