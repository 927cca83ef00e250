// What the open chat has of its own: a system text, sampling values, what happens when the window is full; and presets.

import { h, iconButton } from "../dom.js";
import { newChat } from "../new_chat.js";
import { t } from "../words.js";
import { FieldRow } from "./presets_field.js";

const PATH = "/api/ui/presets";
const SAVE_MS = 500; // after the last keystroke
const EMPTY = { system: "", preset: null, sampling: {}, options: {} };

let panel = null;

export async function open(root, page) {
  panel = new PresetsPanel(root, page);
  document.addEventListener("octavo-chat", panel.turn);
  document.addEventListener("octavo-model", panel.refresh);
  await panel.start();
}

export function close() {
  document.removeEventListener("octavo-chat", panel?.turn);
  document.removeEventListener("octavo-model", panel?.refresh);
  panel?.save.flush();
  panel = null;
}

class PresetsPanel {
  constructor(root, page) {
    this.page = page;
    this.root = root;
    this.turn = () => this.start();
    this.refresh = () => this.root.contains(document.activeElement) || this.start(); // another model, other defaults
    this.save = later(() => this.store(), SAVE_MS);
    this.choice = h("select", { id: "preset", onchange: () => this.choose(this.choice.value) });
    this.state = h("p", { class: "about", id: "preset-state" });
    this.choice.setAttribute("aria-describedby", "preset-state");
    const tool = (name, label, run) => iconButton(name, label, run);
    this.update = h(
      "button",
      { type: "button", class: "plain", onclick: () => this.keep(this.preset) },
      t("presets.update"),
    );
    this.rename = tool("pencil", t("presets.rename"), () => this.renamePreset());
    this.remove = tool("bin", t("presets.delete"), () => this.deletePreset());
    this.add = h("button", { type: "button", class: "plain", onclick: () => this.name(null) }, t("presets.save"));
    this.system = h("textarea", {
      id: "system",
      rows: "4",
      dir: "auto",
      placeholder: t("presets.system.placeholder"),
      "aria-describedby": "system-about",
    });
    this.system.oninput = () => this.change(() => (this.own.system = this.system.value));
    this.first = h(
      "label",
      { class: "first", hidden: true },
      h("input", { type: "checkbox", onchange: (event) => this.beginWith(event.target.checked) }),
      t("presets.first"),
    );
    this.naming = h("form", { class: "naming", hidden: true });
    this.fields = h("div", { class: "fields" });
    this.full = h(
      "select",
      { id: "overflow", "aria-describedby": "overflow-about" },
      ...["drop", "stop"].map((value) => h("option", { value }, t(`presets.overflow.${value}`))),
    );
    this.full.onchange = () =>
      this.change(() => (this.own.options = this.full.value === "stop" ? { overflow: "stop" } : {}));
    this.error = h("p", { class: "trouble", role: "alert", hidden: true });
    this.lead = h("p", { class: "lead" });
    this.body = h(
      "div",
      { hidden: true }, // until the server has said what the chat has
      h(
        "section",
        {},
        h("label", { for: "preset", class: "title" }, t("presets.choose")),
        h("div", { class: "row" }, this.choice, this.rename, this.remove),
        this.state,
        this.first,
        h("div", { class: "row" }, this.update, this.add),
        this.naming,
      ),
      h(
        "section",
        {},
        h("label", { for: "system", class: "title" }, t("presets.system")),
        this.system,
        h("p", { class: "about", id: "system-about" }, t("presets.system.about")),
      ),
      h(
        "section",
        { "aria-labelledby": "sampling-title" },
        h("h2", { id: "sampling-title", class: "title" }, t("presets.sampling")),
        this.fields,
      ),
      h(
        "section",
        {},
        h("label", { for: "overflow", class: "title" }, t("presets.overflow")),
        this.full,
        h("p", { class: "about", id: "overflow-about" }, t("presets.overflow.about")),
      ),
    );
    root.append(this.lead, this.body, this.error);
  }

  /** Show the chat that is open now. */
  async start() {
    this.save.flush();
    const chat = this.page.chat();
    const address = chat === null ? PATH : `${PATH}?${new URLSearchParams({ chat })}`;
    try {
      const state = await this.page.get(address);
      if (this.page.chat() === chat && this.root.isConnected) this.take(chat, state);
    } catch (failure) {
      this.fail(failure);
    }
  }

  take(chat, state) {
    this.chat = chat;
    this.presets = state.presets;
    this.followFirst();
    this.own = structuredClone({ ...EMPTY, ...(chat === null ? newChat.settings : state.settings) });
    this.lead.textContent = t(chat === null ? "presets.lead.new" : "presets.lead");
    const fields = state.fields.map((field) =>
      field.name === "max_tokens" ? { ...field, high: state.context ?? field.high } : field,
    );
    this.rows = fields.map(
      (field) => new FieldRow(field, state.model, (value) => this.change(() => this.set(field.name, value))),
    );
    this.fields.replaceChildren(...this.rows.map((row) => row.element));
    this.fail(null);
    this.draw();
    this.body.hidden = false;
  }

  set(name, value) {
    if (value === null) delete this.own.sampling[name];
    else this.own.sampling[name] = value;
  }

  get preset() {
    return this.presets.find((preset) => preset.id === this.own.preset) ?? null;
  }

  draw() {
    if (document.activeElement !== this.system) this.system.value = this.own.system;
    this.full.value = this.own.options.overflow === "stop" ? "stop" : "drop";
    for (const row of this.rows) row.show(this.own.sampling[row.name] ?? null);
    this.drawPresets();
  }

  drawPresets() {
    const { preset } = this;
    const options = [
      h("option", { value: "" }, t("presets.none")),
      ...this.presets.map(({ id, name }) => h("option", { value: id }, name)),
    ];
    this.choice.replaceChildren(...options);
    this.choice.value = preset?.id ?? "";
    const differs = preset !== null && !alike(preset, this.own);
    this.rename.hidden = this.remove.hidden = preset === null;
    this.first.hidden = preset === null;
    this.first.querySelector("input").checked = preset !== null && newChat.preset?.id === preset.id;
    this.followFirst();
    this.update.hidden = !differs;
    this.add.hidden = preset !== null && !differs;
    this.state.textContent = preset === null ? t("presets.about") : t(differs ? "presets.differs" : "presets.same");
  }

  choose(id) {
    const preset = this.presets.find((other) => other.id === id) ?? null;
    this.own = {
      ...this.own,
      preset: preset?.id ?? null,
      system: preset?.system ?? "",
      sampling: { ...preset?.sampling },
    };
    this.draw();
    this.system.value = this.own.system;
    this.store();
  }

  change(apply) {
    apply();
    for (const row of this.rows) row.mark(this.own.sampling[row.name] ?? null);
    this.drawPresets();
    this.keepForNew();
    this.save();
  }

  /** Hand the settings on: a chat's to the server; those of a chat that is still to be made stay in this tab. */
  async store() {
    const { chat, own } = this;
    this.keepForNew();
    try {
      await this.page.send(`${PATH}/chat`, { chat, settings: own });
      this.fail(null);
      document.dispatchEvent(new CustomEvent("octavo-settings"));
    } catch (failure) {
      this.fail(failure);
    }
  }

  /** At once, for the message may be sent at any moment; and not after it was. */
  keepForNew() {
    if (this.chat !== null || this.page.chat() !== null) return;
    const empty = JSON.stringify(this.own) === JSON.stringify(EMPTY) && newChat.preset === null;
    newChat.settings = empty ? null : this.own;
  }

  /** The preset that new chats begin with may have been changed or deleted elsewhere. */
  followFirst() {
    const first = newChat.preset && this.presets.find(({ id }) => id === newChat.preset.id);
    newChat.preset = first ? { id: first.id, system: first.system, sampling: first.sampling } : null;
  }

  // Presets

  beginWith(yes) {
    const { preset } = this;
    newChat.preset = yes ? { id: preset.id, system: preset.system, sampling: preset.sampling } : null;
  }

  renamePreset() {
    this.name(this.preset);
  }

  /** Ask for a name: of a new preset, or another one of `preset`. */
  name(preset) {
    const input = h("input", {
      type: "text",
      maxlength: "80",
      required: true,
      "aria-label": t("presets.name"),
      placeholder: t("presets.name"),
      autocomplete: "off",
      dir: "auto",
    });
    input.value = preset?.name ?? "";
    this.naming.replaceChildren(
      input,
      h("button", { type: "submit", class: "primary" }, t("presets.name.yes")),
      h("button", { type: "button", class: "plain", onclick: () => (this.naming.hidden = true) }, t("dialog.no")),
    );
    this.naming.onsubmit = async (event) => {
      event.preventDefault();
      if (await this.keep(preset, input.value, preset !== null)) this.naming.hidden = true;
    };
    this.naming.onkeydown = (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      this.naming.hidden = true;
    };
    this.naming.hidden = false;
    input.focus();
    input.select();
  }

  /** Write a preset: what the chat says now, or with `onlyName` what it said before. True if it was written. */
  async keep(preset, name = preset.name, onlyName = false) {
    const { system, sampling } = onlyName ? preset : this.own;
    try {
      const answer = await this.page.send(PATH, { id: preset?.id ?? null, name, system, sampling });
      this.presets = answer.presets;
      this.own.preset = answer.preset.id;
      this.drawPresets();
      await this.store();
      return true;
    } catch (failure) {
      this.fail(failure);
      return false;
    }
  }

  async deletePreset() {
    const { preset } = this;
    const agreed = await this.page.confirm({
      title: t("presets.delete.ask"),
      text: t("presets.delete.text", { name: preset.name }),
      yes: t("presets.delete"),
      danger: true,
    });
    if (!agreed) return;
    try {
      this.presets = (await this.page.send(`${PATH}/delete`, { id: preset.id })).presets;
      this.own.preset = null;
      this.drawPresets();
      await this.store();
    } catch (failure) {
      this.fail(failure);
    }
  }

  fail(failure) {
    this.error.hidden = failure === null;
    this.error.textContent = failure?.message ?? "";
  }
}

function alike(preset, own) {
  const sorted = (values) => JSON.stringify(Object.entries(values).sort(([a], [b]) => (a < b ? -1 : 1)));
  return preset.system === own.system && sorted(preset.sampling) === sorted(own.sampling);
}

/** `run` after a pause; `flush` runs at once what waits. */
function later(run, ms) {
  let timer = null;
  const call = () => {
    clearTimeout(timer);
    timer = setTimeout(() => call.flush(), ms);
  };
  call.flush = () => {
    if (timer === null) return;
    clearTimeout(timer);
    timer = null;
    run();
  };
  return call;
}
