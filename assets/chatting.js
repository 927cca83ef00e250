// What is done with chats and turns, and what the server answers to it: one place between the parts of the page.

import { chooseFiles, exportChats, importFiles } from "./chat_files.js";
import { confirm, toast } from "./dialog.js";
import { announce, h } from "./dom.js";
import { nonce } from "./live.js";
import { tell } from "./model_actions.js";
import { modelTitle, said, t } from "./words.js";

const UNDO_MS = 15_000; // so long a deletion offers to be undone: it lies over the end of the conversation

export class Chatting {
  /** `page`: say(command), open(id), chat(), list(), talk(), models() as the board tells of them. */
  constructor(page) {
    this.page = page;
    this.edits = new Map(); // nonce: how an edited message ends
    this.undoing = new Map(); // id of a deleted chat: ends the note that offers to bring it back
    this.removed = null; // ends the note that offers to put a message back
    this.temporary = false; // the next new chat is one
  }

  // For the list

  get listActions() {
    const say = (command) => this.say(command);
    return {
      open: (id, message, words) => this.open(id, message, words),
      createTemporary: () => this.newTemporary(),
      stop: (chat) => say({ k: "stop", chat }),
      update: (chat, values) => say({ k: "update", chat, ...values }),
      organize: (chat) => this.organize(chat),
      delete: (chat) => say({ k: "delete", chat }), // no question: it can be undone
      keep: (chat) => say({ k: "keep", chat }),
      export: exportChats,
      import: () => this.import(),
      search: (text) => this.page.say({ k: "search", text }), // without a connection: asked when it is there
    };
  }

  /** Send a command; a toast says if there is nobody to hear it. */
  say(command) {
    const sent = this.page.say(command);
    if (!sent) toast(t("composer.offline"), { kind: "error" });
    return sent;
  }

  open(id, message = null, words = "") {
    this.page.open(id);
    if (message) this.page.talk().goTo(message, words);
  }

  newTemporary() {
    this.page.open(null);
    this.temporary = true;
    this.page.talk().showTemporary(true);
    announce(t("temporary.title"));
  }

  /** Whether the first message that is sent now begins a temporary chat. */
  takesTemporary(chat) {
    return chat === null && this.temporary;
  }

  /** Another chat is about to be shown. */
  opened() {
    const id = this.page.chat();
    this.temporary = false;
    this.page.talk().showTemporary(Boolean(id?.startsWith("tmp-")), () => this.say({ k: "keep", chat: id }));
  }

  /** Ask for the folder and the tags of a chat. */
  async organize(id) {
    const chat = this.page.list().get(id);
    if (!chat) return;
    const names = h("datalist", { id: "octavo-folders" }, ...this.page.list().folders.map((name) => h("option", { value: name })));
    const folder = h("input", { type: "text", list: "octavo-folders", maxlength: "60", dir: "auto", autocomplete: "off" });
    folder.value = chat.folder;
    const tags = h("input", { type: "text", maxlength: "400", dir: "auto", autocomplete: "off" });
    tags.value = chat.tags.join(", ");
    const form = h(
      "div",
      { class: "organize" },
      h("label", {}, h("span", {}, t("organize.folder")), folder),
      h("label", {}, h("span", {}, t("organize.tags")), tags),
      names,
    );
    form.onkeydown = (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      form.closest("dialog").querySelector(".choices button:last-child").click();
    };
    const agreed = await confirm({ title: t("organize.title"), text: form, yes: t("organize.save"), no: t("organize.cancel") });
    if (!agreed) return;
    const list = tags.value.split(/[,，、]/).map((tag) => tag.trim().replace(/^#/, "")).filter(Boolean);
    this.say({ k: "update", chat: id, folder: folder.value.trim(), tags: list });
  }

  async import() {
    const files = await chooseFiles();
    if (!files.length) return;
    this.endImport?.(); // what the last one said
    let end = toast(t("import.reading"), { keep: true });
    const tell = (done, total) => {
      end();
      end = toast(t("import.part", { done, total }), { keep: true });
    };
    const sum = await importFiles(files, tell);
    end();
    const parts = ["added", "updated", "same", "failed"].filter((name) => sum[name]).map((name) => t(`import.${name}`, { n: sum[name] }));
    const text = [parts.join(" · ") || t("import.nothing"), ...new Set(sum.faults), ...(sum.strange ? [t("import.takes")] : [])].join("\n");
    this.endImport = toast(text, { kind: sum.failed ? "error" : "plain" });
  }

  // For the conversation

  get talkActions() {
    const chat = () => this.page.chat();
    return {
      retry: (id) => this.say({ k: "retry", chat: chat(), id }),
      continue: () => this.say({ k: "continue", chat: chat() }),
      model: () => this.missing()?.name ?? null,
      load: () => this.loadMissing(),
      version: (id, step) => this.say({ k: "version", chat: chat(), id, step }),
      branch: (id) => this.say({ k: "branch", chat: chat(), id }),
      reveal: (id) => this.say({ k: "reveal", chat: chat(), id }),
      resend: (id, text) => this.resend(id, text),
      remove: (id) => this.say({ k: "remove-turn", chat: chat(), id }),
      editReply: (id, text) => this.say({ k: "edit-reply", chat: chat(), id, text }),
    };
  }

  /** The model that would write here, where none is loaded: the chat's own, else the last one; null: the settings'. */
  missing() {
    const recents = this.page.models()?.recent ?? [];
    const own = this.page.list().get(this.page.chat())?.model;
    const id = own ?? recents[0]?.id;
    if (!id) return null;
    const { context_length = null, quantization = null } = recents.find((recent) => recent.id === id) ?? {};
    return { name: modelTitle(id), choice: { id, context_length, quantization } };
  }

  /** Begin to load it; whether that could be begun. */
  async loadMissing() {
    const missing = this.missing();
    return missing ? (await tell("/load", missing.choice)) !== null : this.say({ k: "load" });
  }

  /** Send another version of a message; resolves when it is stored, and otherwise throws why not. */
  resend(id, text) {
    return new Promise((resolve, reject) => {
      const name = nonce();
      this.edits.set(name, { resolve, reject });
      if (this.page.say({ k: "send", chat: this.page.chat(), text, nonce: name, beside: id })) return;
      this.edits.delete(name);
      reject(new Error(t("composer.offline")));
    });
  }

  connectionLost() {
    for (const edit of this.edits.values()) edit.reject(new Error(t("composer.offline")));
    this.edits.clear();
  }

  // What the server says. Each returns whether the message was for this place.

  take(message) {
    switch (message.k) {
      case "sent":
        return this.settle(message.nonce, (edit) => {
          this.page.talk().follow();
          edit.resolve();
        });
      case "refused":
        if (this.settle(message.nonce, (edit) => edit.reject(new Error(said(message.code, message.values, sentence(message)))))) return true;
        if (message.what === "send" || message.what === "open") return false;
        toast(said(message.code, message.values, sentence(message)), { kind: "error" });
        return true;
      case "branched":
        this.page.open(message.chat);
        toast(t("branch.done"));
        return true;
      case "kept":
        if (this.page.chat() === message.from) this.page.open(message.chat);
        toast(t("temporary.kept"));
        return true;
      case "deleted":
        this.undoing.set(
          message.chat,
          toast(t("delete.done", { title: message.title || t("chats.untitled") }), {
            ms: UNDO_MS,
            action: { label: t("delete.undo"), run: () => this.say({ k: "restore", chat: message.chat }) },
          }),
        );
        return true;
      case "removed":
        this.removed?.(); // only the last one can be undone
        this.removed = toast(t(`removed.${message.what}`), {
          ms: UNDO_MS,
          action: { label: t("delete.undo"), run: () => this.say({ k: "put-back", chat: message.chat, id: message.id }) },
        });
        return true;
      case "put-back":
        announce(t("removed.undone"));
        return true;
      case "restored": // the reader stays where he is
        toast(t("restore.done"), { action: { label: t("restore.open"), run: () => this.page.open(message.chat) } });
        return true;
      case "found":
        this.page.list().searched(message);
        return true;
      default:
        return false;
    }
  }

  /** Chats of these ids are there: nothing is left to undo, should one have been deleted before. */
  listed(ids) {
    for (const id of ids) {
      this.undoing.get(id)?.();
      this.undoing.delete(id);
    }
  }

  settle(name, how) {
    const edit = this.edits.get(name);
    if (!edit) return false;
    this.edits.delete(name);
    how(edit);
    return true;
  }
}

function sentence(message) {
  return [message.message, message.remedy].filter(Boolean).join(" ");
}
