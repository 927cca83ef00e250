// What a chat that is still to be made has of its own: kept by this tab until its first message is stored. Where nothing
// was chosen, it is the preset that this browser begins new chats with, if there is one.

const KEY = "octavo-new-chat";
const DEFAULT_KEY = "octavo-first-preset";

export const newChat = {
  /** {system, preset, sampling, options}, or null for nothing of its own. */
  get settings() {
    const own = read(sessionStorage, KEY);
    if (own !== null) return own;
    const preset = this.preset;
    return preset && { system: preset.system, preset: preset.id, sampling: preset.sampling, options: {} };
  },
  set settings(value) {
    write(sessionStorage, KEY, value);
  },

  /** The preset {id, system, sampling} that new chats begin with, or null. */
  get preset() {
    return read(localStorage, DEFAULT_KEY);
  },
  set preset(value) {
    write(localStorage, DEFAULT_KEY, value);
  },
};

function read(storage, key) {
  try {
    return JSON.parse(storage.getItem(key));
  } catch {
    return null;
  }
}

function write(storage, key, value) {
  if (value === null) storage.removeItem(key);
  else storage.setItem(key, JSON.stringify(value));
}
