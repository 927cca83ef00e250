// What a chat that is still to be made has of its own: kept by this tab until its first message is stored.

const KEY = "octavo-new-chat";

export const newChat = {
  /** {system, preset, sampling, options}, or null. */
  get settings() {
    try {
      return JSON.parse(sessionStorage.getItem(KEY));
    } catch {
      return null;
    }
  },
  set settings(value) {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, JSON.stringify(value));
  },
};
