// The conversation in the middle: the turns of the open chat, following the reply only while the reader is at its end.

import { announce, h, icon } from "./dom.js";
import { markFound } from "./found.js";
import { ReplyTurn } from "./reply.js";
import { UserTurn } from "./user_turn.js";
import { t } from "./words.js";

const NEAR_END_PX = 40;
const ANCHORED_MS = 500; // a turn that was turned to another version stands still while what follows it comes
const KEPT_CHATS = 12; // drawn chats kept aside, for switching back at once

/** The turns of one chat. */
class Chat {
  constructor(id, actions) {
    this.id = id;
    this.actions = actions;
    this.turns = [];
    this.known = false; // the server's picture has come
    this.marked = undefined; // the turn that is drawn as the last one
    this.scroll = null; // where the reader left it; null: at the end
    this.earlier = h("button", { type: "button", class: "plain earlier", hidden: true }, t("turn.earlier"));
    this.earlier.onclick = () => actions.earlier(this.id);
    this.element = h("div", { class: "turns", role: "log", "aria-live": "off" }, this.earlier);
  }

  get last() {
    return this.turns[this.turns.length - 1];
  }

  get writing() {
    return this.last instanceof ReplyTurn && this.last.live;
  }

  /** Stands for the turns that are shown; null: they are not known. */
  get key() {
    return this.known ? this.turns.map((turn) => turn.id).join() : null;
  }

  /** Where this picture ends, so that the server sends only what follows. */
  get position() {
    if (!this.known || this.turns.length === 0) return null;
    const { last } = this;
    const reply = last instanceof ReplyTurn;
    return {
      ids: this.turns.map((turn) => turn.id),
      answer: reply ? last.answer.finished : 0,
      thought: reply ? last.thought.finished : 0,
    };
  }

  open(message) {
    this.known = true;
    if (message.resumed) {
      // the unfinished end is sent again from its beginning
      this.earlier.hidden = message.left === 0;
      if (this.last instanceof ReplyTurn) this.last.answer.open = this.last.thought.open = "";
      return;
    }
    this.turns = [];
    this.element.replaceChildren(this.earlier);
    this.earlier.hidden = message.left === 0;
    for (const turn of message.turns) this.add(turn);
  }

  add(turn) {
    this.turns.push(this.make(turn));
    this.element.append(this.last.element);
    this.markLast();
  }

  prepend(message) {
    const turns = message.turns.map((turn) => this.make(turn));
    this.turns.unshift(...turns);
    this.earlier.after(...turns.map((turn) => turn.element));
    this.earlier.hidden = message.left === 0;
  }

  make(turn) {
    return turn.role === "user" ? new UserTurn(turn, this.actions) : new ReplyTurn(turn, this.actions);
  }

  drop(id) {
    const from = this.turns.findIndex((turn) => turn.id === id);
    if (from < 0) return;
    for (const turn of this.turns.splice(from)) turn.element.remove();
    this.markLast();
  }

  markLast() {
    if (this.marked === this.last) return;
    this.marked?.element.classList.remove("last");
    this.marked = this.last;
    this.marked?.element.classList.add("last");
  }

  /** Where turns stand among their versions. */
  moved(places) {
    for (const [id, version, versions] of places) this.find(id)?.place({ version, versions });
  }

  find(id) {
    return this.turns.findLast((turn) => turn.id === id);
  }
}

/** The panel. `actions` are commands to the server; `onChange` is called when the open chat or its state changes. */
export class Talk {
  constructor(panel, actions, onChange) {
    this.actions = {
      ...actions,
      version: (id, step) => {
        this.pinned = false;
        this.expect(id, (turn) => turn.versions.focus(step), true);
        actions.version(id, step);
      },
      remove: (id) => {
        this.expect(id, (turn) => turn.element.focus({ preventScroll: true }), true);
        actions.remove(id);
      },
      ask: (id) => actions.retry(id),
      retry: (id) => {
        this.expect(id, (turn) => turn.element.focus({ preventScroll: true }));
        actions.retry(id);
      },
    };
    this.onChange = onChange;
    this.expected = null; // {at, focus}: where the keyboard goes on when the turn it was in has been replaced
    this.anchor = null; // {turn, top, until}: a turn that stays at this height of the window
    this.wanted = null; // a turn that is to be shown, once it is there
    this.chats = new Map();
    this.chat = null;
    this.pinned = true;
    this.top = 0;
    this.welcome = h("div", { class: "welcome" });
    this.temporary = h(
      "div",
      { class: "temporary-note", hidden: true },
      icon("ghost"),
      h("p", {}, h("strong", {}, t("temporary.title")), " ", t("temporary.text")),
    );
    this.toEnd = h(
      "button",
      { type: "button", class: "to-end", hidden: true, "aria-label": t("turn.end"), title: t("turn.end") },
      icon("down"),
    );
    this.toEnd.onclick = () => this.follow();
    this.scroller = h("div", { class: "scroller", tabindex: "0", "aria-label": t("talk") }, this.welcome);
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    panel.append(this.scroller, this.temporary, this.toEnd);
    new ResizeObserver(() => this.settle()).observe(this.scroller);
  }

  get writing() {
    return Boolean(this.chat?.writing);
  }

  /** The figures of the newest reply that has some. */
  get stats() {
    return this.chat?.turns.findLast((turn) => turn.stats)?.stats ?? null;
  }

  /** Show a chat; returns the position to tell the server. */
  show(id) {
    if (this.chat) this.chat.scroll = this.pinned ? null : this.scroller.scrollTop;
    this.chat = id === null ? null : this.keep(id);
    this.scroller.replaceChildren(this.chat && this.chat.turns.length ? this.chat.element : this.chat ? "" : this.welcome);
    this.pinned = !this.chat || this.chat.scroll === null;
    if (!this.pinned) this.scroller.scrollTop = this.chat.scroll;
    else if (!this.chat) this.scroller.scrollTop = 0;
    this.top = this.scroller.scrollTop;
    this.expected = this.wanted = null;
    this.settle();
    this.onChange();
    return this.chat?.position ?? null;
  }

  keep(id) {
    const chat = this.chats.get(id) ?? new Chat(id, this.actions);
    this.chats.delete(id);
    this.chats.set(id, chat);
    if (this.chats.size > KEPT_CHATS) this.chats.delete(this.chats.keys().next().value);
    return chat;
  }

  forget(id) {
    this.chats.delete(id);
  }

  /** The id of the newest turn of a chat that was seen here. */
  lastOf(id) {
    return this.chats.get(id)?.last?.id;
  }

  /** Octavo is gone or out of reach, as `words` say: the replies that were being written rest here. */
  freeze(words) {
    for (const chat of this.chats.values()) {
      const frozen = chat.last instanceof ReplyTurn && chat.last.freeze(words);
      if (frozen && chat === this.chat) announce(words);
    }
    this.settle();
    this.onChange();
  }

  /** Say that what is written here is not kept; `keep` makes it last, null where there is nothing yet. */
  showTemporary(yes, keep = null) {
    this.temporary.hidden = !yes;
    this.temporary.querySelector("button")?.remove();
    if (keep) this.temporary.append(h("button", { type: "button", class: "plain", onclick: keep }, t("chats.keep")));
  }

  /**
   * Scroll to a turn, in it to the `words` that were looked for; it may be in another version or among the earlier ones,
   * and not be here yet.
   */
  goTo(id, words = "") {
    this.wanted = { id, words, revealed: false, tries: 40 };
    this.seek();
  }

  seek() {
    const { wanted, chat } = this;
    if (!wanted || !chat?.known) return;
    const turn = chat.find(wanted.id);
    if (turn) {
      this.wanted = null;
      this.pinned = false;
      turn.element.scrollIntoView({ block: "center" });
      this.center(this.mark(turn, wanted.words));
      turn.element.classList.add("found");
      setTimeout(() => turn.element.classList.remove("found"), 2000);
      turn.element.focus({ preventScroll: true });
      return;
    }
    if (!wanted.revealed) {
      wanted.revealed = true;
      this.actions.reveal(wanted.id); // answered only where that changes what is shown
    }
    if (!chat.earlier.hidden && wanted.tries > 0) {
      wanted.tries -= 1;
      this.actions.earlier(chat.id);
    }
  }

  mark(turn, words) {
    for (const text of turn.element.querySelectorAll(".bubble, :scope > .blocks")) {
      const range = words && markFound(text, words);
      if (range) return range;
    }
    return null;
  }

  /** A turn may be taller than the window. */
  center(range) {
    if (!range) return;
    const [place, window] = [range.getBoundingClientRect(), this.scroller.getBoundingClientRect()];
    this.scroller.scrollTop += (place.top + place.bottom - window.top - window.bottom) / 2;
  }

  /** A turn is about to be replaced: `focus` puts the keyboard into its successor, which stands `still` if wanted. */
  expect(id, focus, still = false) {
    const at = this.chat?.turns.findIndex((turn) => turn.id === id) ?? -1;
    const top = at < 0 ? 0 : this.chat.turns[at].element.getBoundingClientRect().top;
    this.expected = at < 0 ? null : { at, focus, top: still ? top : null };
  }

  /** The turn that takes the place of the expected one is there. */
  arrived() {
    const { expected, chat } = this;
    const turn = expected && chat.turns[expected.at];
    if (!turn) return;
    this.expected = null;
    if (expected.top !== null) this.anchor = { turn, top: expected.top, until: performance.now() + ANCHORED_MS };
    if (document.activeElement === document.body) expected.focus(turn);
  }

  /** What was expected does not come: it was at the end. */
  dropped() {
    const { expected, chat } = this;
    if (!expected || !chat || expected.at < chat.turns.length) return;
    this.expected = null;
    if (document.activeElement === document.body) (chat.last?.element ?? this.scroller).focus({ preventScroll: true });
  }

  /** A message about the open chat. */
  apply(message) {
    const { chat } = this;
    if (!chat) return;
    switch (message.k) {
      case "chat":
        if (message.chat !== chat.id) return;
        this.open(message);
        if (chat.element.parentNode !== this.scroller) this.scroller.replaceChildren(chat.element);
        break;
      case "turn":
        chat.add(message.turn);
        if (this.chat.turns.length - 1 === this.expected?.at) this.arrived();
        break;
      case "places":
        chat.moved(message.places);
        return;
      case "drop":
        chat.drop(message.from);
        queueMicrotask(() => this.dropped()); // once what follows in its place is there
        break;
      case "earlier":
        this.above(() => chat.prepend(message));
        break;
      case "p":
        chat.find(message.id)?.patch(message);
        this.settle();
        return;
      case "about": {
        const ending = chat.find(message.id)?.about(message);
        if (ending) announce(ending);
        break;
      }
    }
    this.settle();
    this.onChange();
    this.seek();
  }

  /** The whole picture of the chat. */
  open(message) {
    this.chat.open(message);
    this.arrived();
  }

  /** Add above what is read without moving it. */
  above(change) {
    const fromEnd = this.scroller.scrollHeight - this.scroller.scrollTop;
    change();
    this.scroller.scrollTop = this.scroller.scrollHeight - fromEnd;
  }

  /** The reader moved: up means stay there, at the end means follow. */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const atEnd = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    if (atEnd) this.pinned = true;
    else if (scrollTop < this.top - 1) this.pinned = false;
    this.top = scrollTop;
    this.toEnd.hidden = this.pinned || atEnd || !this.chat;
  }

  follow() {
    this.pinned = true;
    this.settle();
  }

  /** After a change: stay at the end if the reader was there, or at the turn that is looked at. */
  settle() {
    const { scroller, anchor } = this;
    if (anchor && (this.pinned || performance.now() > anchor.until)) this.anchor = null;
    else if (anchor) scroller.scrollTop += anchor.turn.element.getBoundingClientRect().top - anchor.top;
    if (this.pinned && this.chat) {
      scroller.scrollTop = scroller.scrollHeight;
      this.top = scroller.scrollTop;
    }
    if (!this.chat) return; // the welcome is read from its beginning
    this.toEnd.hidden = this.pinned || scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END_PX;
  }
}
