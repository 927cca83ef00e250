// Where models lie on this machine, and the token for those whose makers ask for one.

import { h, iconButton } from "../dom.js";
import { bytes, t } from "../words.js";
import { section } from "./models_parts.js";

export class Access {
  constructor(actions, refresh) {
    this.actions = actions;
    this.refresh = refresh;
    this.cache = h("code", {});
    this.free = h("span", { class: "facts-inline" });
    this.folders = h("ul", { class: "folders" });
    this.folder = h("input", { type: "text", placeholder: t("models.folder.hint"), "aria-label": t("models.folder.hint"), autocomplete: "off", spellcheck: "false" });
    this.addFolder = h("form", { class: "one-line" }, this.folder, h("button", { class: "plain" }, t("models.folder.add")));
    this.addFolder.addEventListener("submit", (event) => this.add(event));
    this.tokenState = h("span", {});
    this.token = h("input", { type: "password", placeholder: t("models.token.place"), "aria-label": t("models.token"), autocomplete: "off", spellcheck: "false" });
    this.tokenForm = h("form", { class: "one-line" }, this.token, h("button", { class: "plain" }, t("models.token.save")));
    this.tokenForm.addEventListener("submit", (event) => this.save(event));
    this.tokenError = h("p", { class: "trouble", role: "alert", hidden: true });
    this.folderError = h("p", { class: "trouble", role: "alert", hidden: true });
    this.drop = h("button", { type: "button", class: "link", onclick: () => this.forget() }, t("models.token.drop"));
    this.elsewhere = h("p", { class: "facts", hidden: true }, t("models.local.only"));
    this.element = section(
      t("models.places"),
      h("h3", {}, t("models.token")),
      h("p", { class: "facts" }, t("models.token.why")),
      h("p", { class: "state" }, this.tokenState, " ", this.drop),
      this.tokenForm,
      this.tokenError,
      h("h3", {}, t("models.cache")),
      h("p", { class: "path" }, this.cache, " ", this.free),
      h("h3", {}, t("models.folders")),
      this.folders,
      this.addFolder,
      this.folderError,
      this.elsewhere,
    );
  }

  overview({ cache, disk_free: free, folders, token, local_user: isHere }) {
    this.cache.textContent = cache;
    this.free.textContent = t("models.cache.free", { free: bytes(free) });
    this.folders.replaceChildren(
      ...folders.map((path) =>
        h("li", {}, h("code", {}, path), isHere ? iconButton("close", t("models.folder.drop", { path }), () => this.remove(path)) : null),
      ),
    );
    this.tokenState.textContent = t(`models.token.${token.source ?? "none"}`, { name: token.variable ?? "" });
    this.drop.hidden = token.source !== "file" || !isHere;
    this.tokenForm.hidden = token.source === "environment" || !isHere;
    this.addFolder.hidden = !isHere;
    this.elsewhere.hidden = isHere;
  }

  async add(event) {
    event.preventDefault();
    if (await this.change("/folders", { add: this.folder.value }, this.folderError)) this.folder.value = "";
  }

  remove(path) {
    return this.change("/folders", { remove: path }, this.folderError);
  }

  async save(event) {
    event.preventDefault();
    if (!this.token.value.trim()) return;
    const answer = await this.change("/token", { token: this.token.value }, this.tokenError);
    if (!answer) return;
    this.token.value = "";
    this.actions.page.toast(t("models.token.saved", { name: answer.name }));
  }

  forget() {
    return this.change("/token", {}, this.tokenError);
  }

  async change(path, body, error) {
    error.hidden = true;
    try {
      const answer = await this.actions.send(path, body);
      await this.refresh();
      return answer;
    } catch (failure) {
      error.textContent = failure.message;
      error.hidden = false;
      return null;
    }
  }
}
