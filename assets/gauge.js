// Asks the server how full the model's window would be with what is being written: one question at a time, and not at
// every keystroke.

import { ask } from "./api.js";

const PAUSE_MS = 250;
const LONG_PAUSE_MS = 700;
const LONG_TEXT = 20_000; // characters
const FIRST_RETRY_MS = 1000;
const SLOWEST_RETRY_MS = 30_000;

export class Gauge {
  /** `draft()` is what to measure: {chat, text, files, settings}; `take(answer, draft)` hears the answer. */
  constructor(draft, take) {
    this.draft = draft;
    this.take = take;
    this.timer = null;
    this.asking = null;
    this.again = false;
    this.retryMs = FIRST_RETRY_MS;
  }

  /** Something has changed. */
  soon({ now = false } = {}) {
    clearTimeout(this.timer);
    const { text } = this.draft();
    this.timer = setTimeout(() => this.ask(), now ? 0 : text.length > LONG_TEXT ? LONG_PAUSE_MS : PAUSE_MS);
  }

  async ask() {
    if (this.asking) {
      this.again = true;
      return;
    }
    const draft = this.draft();
    this.asking = draft;
    try {
      this.take(await ask("/api/ui/compose/measure", { method: "POST", body: draft }), draft);
      this.retryMs = FIRST_RETRY_MS;
    } catch (failure) {
      this.failed(failure);
    }
    this.asking = null;
    if (this.again) {
      this.again = false;
      this.soon();
    }
  }

  /** Not reachable, or the chat is gone: whoever shows that says so. What may pass is asked again, more and more seldom. */
  failed({ status = 500 }) {
    const isOurs = status >= 400 && status < 500 && status !== 429;
    if (isOurs) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), this.retryMs);
    this.retryMs = Math.min(SLOWEST_RETRY_MS, 2 * this.retryMs);
  }
}
