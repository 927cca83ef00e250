// Attached files as chips: those of a message being written, and those of one that was sent. A click shows the text.

import { ask } from "./api.js";
import { announce, h, icon, iconButton } from "./dom.js";
import { said, short, t } from "./words.js";

const PATH = "/api/ui/compose";
const LARGEST_BYTES = 20 * 1024 * 1024; // as the server has it
const MOST_FILES = 20;
const AT_ONCE = 2;

/** The files of a message that was sent, or null if it has none. */
export function sentFiles(message, files) {
  if (!files?.length) return null;
  const address = (at) => `${PATH}/sent?${new URLSearchParams({ message, at })}`;
  const chips = files.map((file, at) =>
    h(
      "li",
      { class: "file" },
      opener(file, () => ask(address(at))),
    ),
  );
  return h("ul", { class: "files", "aria-label": t("files") }, ...chips);
}

/**
 * Files on their way into a message. `changed()` is called when the list or a file's state changes; `note(text, kind)`
 * shows a note and returns the way to end it.
 */
export class Files {
  constructor(changed, note) {
    this.changed = changed;
    this.note = note;
    this.told = new Map(); // kind: {lines, end}, of files that were added together
    this.items = [];
    this.waiting = [];
    this.active = 0;
    this.element = h("ul", { class: "files", "aria-label": t("files"), hidden: true });
  }

  get ids() {
    return this.items.filter((item) => item.state === "ready").map((item) => item.id);
  }

  get reading() {
    return this.items.some((item) => item.state === "reading");
  }

  get lost() {
    return this.items.some((item) => item.state === "lost");
  }

  /** What a reload needs to show the files again. */
  get kept() {
    return this.items.filter((item) => item.state !== "reading").map(({ id, name, tokens }) => ({ id, name, tokens }));
  }

  restore(kept) {
    for (const item of this.items) item.stop?.abort();
    this.waiting = [];
    this.items = kept.map((file) => ({ ...file, state: "ready" }));
    this.draw();
  }

  /** The server has no longer what these ids named. */
  markLost(ids) {
    for (const item of this.items) if (ids.includes(item.id)) item.state = "lost";
    if (ids.length) this.draw();
  }

  /** One note of a kind for all files that are read together: of many notes some would go unread. */
  complain(text, kind = "error") {
    const told = this.told.get(kind) ?? { lines: new Set() };
    told.end?.();
    told.lines.add(text);
    told.end = this.note([...told.lines].join("\n"), kind);
    this.told.set(kind, told);
  }

  add(files) {
    if (!this.reading) this.told.clear(); // what is said of earlier files stays, but is not said again
    for (const file of files) {
      if (this.items.length >= MOST_FILES) {
        this.complain(t("said.file_many", { most: MOST_FILES }));
        break;
      }
      if (file.size > LARGEST_BYTES) {
        const size = (file.size / 1024 ** 2).toFixed(1);
        this.complain(t("said.file_large", { name: file.name, size, most: LARGEST_BYTES / 1024 ** 2 }));
        continue;
      }
      const item = { name: file.name, state: "reading", stop: new AbortController(), file };
      this.items.push(item);
      this.waiting.push(item);
    }
    this.draw();
    this.next();
  }

  next() {
    while (this.active < AT_ONCE && this.waiting.length) {
      this.active += 1;
      this.read(this.waiting.shift()).finally(() => {
        this.active -= 1;
        this.next();
      });
    }
  }

  async read(item) {
    try {
      const data = await base64(item.file);
      const { signal } = item.stop;
      const answer = await ask(`${PATH}/files`, { method: "POST", body: { name: item.name, data }, signal });
      if (answer.refused) throw new Error(saidOf(answer.refused));
      Object.assign(item, { state: "ready", id: answer.id, name: answer.name, tokens: answer.tokens, file: null });
      announce(t("files.ready", { name: answer.name, n: answer.tokens ?? 0 }));
      for (const remark of answer.remarks) this.complain(saidOf(remark), "notice");
    } catch (error) {
      this.items = this.items.filter((other) => other !== item);
      if (error.name !== "AbortError") this.complain(error.message);
    }
    this.draw();
  }

  remove(item) {
    const at = this.items.indexOf(item);
    item.stop?.abort();
    this.waiting = this.waiting.filter((other) => other !== item);
    this.items = this.items.filter((other) => other !== item);
    if (item.id) ask(`${PATH}/files/remove`, { method: "POST", body: { files: [item.id] } }).catch(() => {});
    this.draw();
    this.element.children[Math.min(at, this.items.length - 1)]?.querySelector(".remove").focus();
  }

  draw() {
    this.element.hidden = this.items.length === 0;
    this.element.replaceChildren(...this.items.map((item) => this.chip(item)));
    this.changed();
  }

  chip(item) {
    const shown =
      item.state === "ready"
        ? opener(item, () => ask(`${PATH}/files/${item.id}`))
        : h(
            "span",
            { class: "open" },
            icon("file"),
            h("bdi", { class: "name" }, item.name),
            h("span", { class: "note" }, t(item.state === "lost" ? "files.lost" : "files.reading")),
          );
    const remove = iconButton("close", t("files.remove", { name: item.name }), () => this.remove(item), {
      class: "remove",
    });
    return h("li", { class: `file ${item.state}` }, shown, remove);
  }
}

function opener(file, fetchText) {
  const tokens = file.tokens
    ? h("span", { class: "note tabular" }, t("files.tokens", { n: file.tokens, short: short(file.tokens) }))
    : null;
  const button = h(
    "button",
    { type: "button", class: "open", title: t("files.open", { name: file.name }) },
    icon("file"),
    h("bdi", { class: "name" }, file.name),
    tokens,
  );
  button.onclick = () => showText(file.name, fetchText);
  return button;
}

/** The text of a file, as the model reads it. */
async function showText(name, fetchText) {
  const body = h("pre", { class: "file-text", dir: "auto", tabindex: "0" }, "…");
  const close = iconButton("close", t("files.close"), () => dialog.close());
  const dialog = h(
    "dialog",
    { class: "reader", "aria-label": name },
    h("header", {}, h("h2", {}, h("bdi", {}, name)), close),
    body,
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.getElementById("octavo").append(dialog);
  dialog.showModal();
  try {
    const file = await fetchText();
    body.textContent = file.text;
  } catch (error) {
    body.textContent = error.message;
  }
}

function saidOf({ code, values, message, text }) {
  const named = values?.what ? { ...values, what: t(`files.what.${values.what}`) } : values;
  return said(code, named, message ?? text);
}

function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error(t("files.unreadable", { name: file.name })));
    reader.readAsDataURL(file);
  });
}
