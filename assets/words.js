// The page's words in the chosen language, and numbers as people read them.

import { worded } from "./sentences.js";
import { language, words } from "./strings.js";

// The reader's own country where the page speaks its language: 14:02 or 2:02 PM.
const locale = navigator.languages?.find((tag) => tag.split("-")[0] === language.split("-")[0]) ?? language;
const plural = new Intl.PluralRules(language);
const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
const oneDigit = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(locale, { hour: "numeric", minute: "2-digit" });
const dated = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "short" });

/** The words for `key`. With `n` among the values, `key.one` or `key.other` by the language's rule. */
export function t(key, values = {}) {
  const text = words[key] ?? words[`${key}.${plural.select(values.count ?? values.n ?? 0)}`] ?? words[`${key}.other`] ?? key;
  return text.replace(/\{(\w+)\}/g, (mark, name) => {
    const value = values[name];
    return value === undefined ? mark : typeof value === "number" ? whole.format(value) : value;
  });
}

/** Our own words for what the server says under a name, or else its own, which are English, in the page's language. */
export function said(code, values, otherwise) {
  return code && (has(`said.${code}`) || has(`said.${code}.other`)) ? t(`said.${code}`, values ?? {}) : worded(otherwise);
}

export { worded };

/** The name a model is known by, for its id; the starter's id says nothing. */
export function shownModel(id) {
  return id === "starter" ? "SmolLM2-135M-Instruct" : id;
}

/** What people call a model, for its id: without owner and folder, and without what `format`, told beside it, says too. */
export function modelTitle(id, format = "") {
  if (id.startsWith("shape:")) return id;
  const [stored] = format.split(" as ");
  const [name, variant] = (shownModel(id).split(/[\\/]/).filter(Boolean).at(-1) ?? id).replace(/\.gguf$/i, "").split(":");
  const says = stored && (name.endsWith(`.${stored}`) || name.endsWith(`-${stored}`));
  const stem = says ? name.slice(0, -stored.length - 1) : name;
  return variant && variant !== stored ? `${stem}:${variant}` : stem;
}

/** "Q4_1 as int4": how the weights are stored, and what they run as. */
export function formatName(format) {
  const [stored, as] = format.split(" as ");
  return as ? t("model.format.as", { stored, as }) : format;
}

/** A device as people write it. */
export function deviceName(device) {
  return device.replace(/^cpu$/, "CPU").replace(/^cuda/, "CUDA");
}

export const has = (key) => key in words;

/** 3.1k for a number of tokens, which are counted in thousands. */
export function short(n) {
  return n < 1000 ? whole.format(n) : `${(n < 100_000 ? oneDigit : whole).format(n / 1000)}k`;
}

export function speed(n) {
  return (n < 10 ? oneDigit : whole).format(n);
}

/** "40 ms", "0.21 s", "12 s", "3 min". */
export function duration(seconds) {
  if (seconds < 0.1) return `${whole.format(seconds * 1000)} ms`;
  if (seconds < 1) return `${seconds.toFixed(2)} s`;
  if (seconds < 10) return `${oneDigit.format(seconds)} s`;
  if (seconds < 90) return `${whole.format(seconds)} s`;
  return `${whole.format(seconds / 60)} min`;
}

export function bytes(n) {
  if (n < 1024 ** 2) return `${whole.format(n / 1024)} KiB`;
  if (n < 1024 ** 3) return `${whole.format(n / 1024 ** 2)} MiB`;
  return `${oneDigit.format(n / 1024 ** 3)} GiB`;
}

/** What chats take beside the weights. On the processor the system hands out memory as they grow; a GPU's is set aside. */
export function memoryOfChats({ chat, kv, context, device }) {
  return t(/^cpu$/i.test(device) ? "model.chats.grows" : "model.chats.reserved", { c: bytes(chat), n: context, k: bytes(kv) });
}

export function timeOfDay(seconds) {
  return clock.format(new Date(seconds * 1000));
}

/** When a message was written: the time, with the date where that is not today's. */
export function moment(seconds) {
  const isToday = new Date(seconds * 1000).toDateString() === new Date().toDateString();
  return isToday ? timeOfDay(seconds) : dayAndTime(seconds);
}

export function dayAndTime(seconds) {
  return dated.format(new Date(seconds * 1000));
}
