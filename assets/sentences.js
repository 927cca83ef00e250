// Errors and notices are written in English where they arise. Here they become sentences of the page's language, found by
// their form: "There is no model {model}." has its name in it, and may be followed by what to do.

import { sentences } from "./strings.js";

const LONGEST = 2000; // characters; what is longer quotes something
const REMEMBERED = 300;
const known = new Map();
let forms = null; // the most telling first

/** What the server says, in the page's language as far as there are words for it. */
export function worded(text) {
  if (typeof text !== "string" || sentences.length === 0 || text.length > LONGEST) return text;
  if (!known.has(text)) {
    if (known.size >= REMEMBERED) known.clear();
    known.set(text, text.split("\n").map(reworded).join("\n"));
  }
  return known.get(text);
}

function reworded(text) {
  const all = whole(text);
  if (all !== null) return all;
  const ends = [...text.matchAll(/[.:;)] /g)].map((end) => end.index + 1);
  for (const end of ends.reverse()) {
    const begun = whole(text.slice(0, end));
    if (begun !== null) return begun + reworded(text.slice(end + 1));
  }
  const first = ends.at(-1);
  return first === undefined ? text : `${text.slice(0, first)} ${reworded(text.slice(first + 1))}`;
}

function whole(text) {
  forms ??= sentences.map(([form, own]) => compiled(form, own)).sort((a, b) => b.letters - a.letters);
  for (const { pattern, names, own } of forms) {
    const match = pattern.exec(text);
    if (!match) continue;
    const values = Object.fromEntries(names.map((name, at) => [name, reworded(match[at + 1])]));
    return own.replace(/\{(\w+)\}/g, (mark, name) => values[name] ?? mark);
  }
  return null;
}

/** What stands in a place goes on to the next sentence only inside of brackets, where it may quote anything; at the
 * beginning it is a name, and ends where something is said of it. */
function compiled(form, own) {
  const parts = form.split(/\{\w+\}/);
  const names = [...form.matchAll(/\{(\w+)\}/g)].map((place) => place[1]);
  let pattern = escaped(parts[0]);
  for (const [at, part] of parts.slice(1).entries()) {
    const begins = at === 0 && parts[0] === "";
    pattern += parts[at].endsWith("(") ? "(.+?)" : begins ? "((?:(?!\\. [A-Z`]|: ).)+?)" : "((?:(?!\\. [A-Z`]).)+?)";
    pattern += escaped(part);
  }
  return { pattern: new RegExp(`^${pattern}$`), names, own, letters: parts.join("").length };
}

function escaped(text) {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}
