// The tab's WebSocket: comes back by itself, and says where it was so that the server sends only the rest.

const SLOWEST_RETRY_MS = 5000;
const PATCH = "p"; // more of a reply's text
const LONGEST_DRAWING_MS = 1000; // a window that the browser takes for covered may draw nothing at all

export class Live {
  /** `onMessage` gets every message, `onOpen` and `onClose` tell the state of the connection. */
  constructor({ onMessage, onOpen, onClose }) {
    this.onMessage = onMessage;
    this.onOpen = onOpen;
    this.onClose = onClose;
    this.socket = null;
    this.retryMs = 250;
    this.timer = null;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && !this.connected) this.connect();
      this.say({ k: "visible", on: !document.hidden });
    });
    window.addEventListener("online", () => this.connected || this.connect());
  }

  get connected() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  connect() {
    clearTimeout(this.timer);
    if (this.socket && this.socket.readyState <= WebSocket.OPEN) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/api/live`);
    this.socket = socket;
    socket.onopen = () => {
      this.retryMs = 250;
      if (document.hidden) this.say({ k: "visible", on: false });
      this.onOpen();
    };
    socket.onmessage = (event) => {
      const messages = JSON.parse(event.data);
      for (const message of messages) this.onMessage(message);
      if (messages.some(({ k }) => k === PATCH)) this.whenDrawn(() => this.socket === socket && this.say({ k: "drawn" }));
    };
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.onClose();
      this.timer = setTimeout(() => this.connect(), this.retryMs);
      this.retryMs = Math.min(SLOWEST_RETRY_MS, this.retryMs * 1.7);
    };
  }

  /** With the frame that shows what has just been changed. */
  whenDrawn(act) {
    const late = setTimeout(() => done(), LONGEST_DRAWING_MS);
    let over = false;
    const done = () => {
      if (over) return;
      over = true;
      clearTimeout(late);
      act();
    };
    requestAnimationFrame(done);
  }

  /** Send a command; false if there is no connection. */
  say(command) {
    if (!this.connected) return false;
    this.socket.send(JSON.stringify(command));
    return true;
  }
}

/** A name no other sending has. */
export function nonce() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
