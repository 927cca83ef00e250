// JSON over HTTP to this server: for what is asked once. What changes by itself comes over the tab's WebSocket.

import { t, worded } from "./words.js";

/** Why a request failed, in words for the reader. `status` is 0 if there was no answer. */
export class Failure extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The answer's JSON. Throws Failure. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const options = { method, signal, headers: { accept: "application/json" } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(t("unreachable"));
  }
  const answer = await response.json().catch(() => null);
  if (response.ok) return answer;
  throw new Failure(worded(answer?.error?.message) ?? t("unreachable"), response.status, answer?.error?.code ?? null);
}
