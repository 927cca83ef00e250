// What any place of the page can do with models: fetch, load, unload, with the question before replies are ended.

import { ask } from "./api.js";
import { confirm, toast } from "./dialog.js";
import { t } from "./words.js";

export const PATH = "/api/ui/models";

/** Send, and tell a failure in a note. The answer, or null. */
export async function tell(path, body = {}) {
  try {
    return await ask(`${PATH}${path}`, { method: "POST", body });
  } catch (failure) {
    toast(failure.message, { kind: "error" });
    return null;
  }
}

/** Load a model that is on this disk. `choice`: context_length and quantization, null for config.yaml's. */
export function loadModel(id, choice = {}) {
  return ending("/load", { id, ...choice }, t("models.replies.load"));
}

/** Load the model again that rests. */
export function wakeModel() {
  return tell("/wake");
}

export function unloadModel() {
  return ending("/unload", {}, t("models.replies.unload"));
}

/** Fetch a model; with `load` it is loaded once it is complete. The job, or null. */
export function fetchModel(id, { load = false, quantization = null } = {}) {
  return tell("/downloads", { id, load, quantization });
}

/** Do something that ends replies; ask first if there are any. */
async function ending(path, body, yes) {
  try {
    await ask(`${PATH}${path}`, { method: "POST", body });
  } catch (failure) {
    if (failure.code !== "replies_running") {
      toast(failure.message, { kind: "error" });
      return;
    }
    const text = t("models.replies.text", { names: failure.message });
    if (await confirm({ title: t("models.replies.title"), text, yes, danger: true })) await tell(path, { ...body, force: true });
  }
}
