// Chats as files: downloads of one or all, and import of our own files, of a copy of everything and of ChatGPT's export,
// zipped or not.

import { Failure, ask } from "./api.js";
import { h } from "./dom.js";
import { said, t } from "./words.js";

const PATH = "/api/ui/chats";
const PART_CHARACTERS = 4_000_000; // of one request
const PIECE_BYTES = 3_000_000; // of a file of chats in one request
const ZIP_MAGIC = "PK\x03\x04";
const DATABASE_MAGIC = "SQLite format 3\0";
const LARGEST_CHARACTERS = 28_000_000; // of one chat: the server takes no larger body

/** Save a chat (null: all of them) as "json" or "markdown". */
export function exportChats(chat, format) {
  const query = new URLSearchParams({ format, ...(chat === null ? {} : { chat }) });
  const link = h("a", { href: `${PATH}/export?${query}`, download: "", class: "offscreen" });
  document.body.append(link);
  link.click();
  link.remove();
}

/** Let the reader choose files; the chosen ones, or none. */
export function chooseFiles() {
  return new Promise((resolve) => {
    const input = h("input", { type: "file", multiple: true, accept: ".json,.zip,.sqlite3,application/json,application/zip", class: "offscreen" });
    input.onchange = () => {
      input.remove();
      resolve([...input.files]);
    };
    input.oncancel = () => {
      input.remove();
      resolve([]);
    };
    document.body.append(input);
    input.click();
  });
}

/** Import files; returns {added, updated, same, failed, faults} of all together; `strange`: a file was of no known kind.
    `onPart(done, total)` tells how far. */
export async function importFiles(files, onPart = () => {}) {
  const sum = { added: 0, updated: 0, same: 0, failed: 0, faults: [], strange: false };
  for (const file of files) {
    const before = sum.faults.length;
    try {
      const database = await databaseOf(file);
      if (database) await importDatabase(database, sum, onPart);
      else await importTexts(await textsOf(file), sum, onPart);
    } catch (error) {
      sum.failed += 1;
      sum.strange ||= !(error instanceof Failure); // else it was the way to the server
      sum.faults.push(error instanceof SyntaxError ? t("import.nojson") : error.message);
    }
    sum.faults.push(...sum.faults.splice(before).map((fault) => `${file.name}: ${fault}`));
  }
  return sum;
}

async function importTexts(texts, sum, onPart) {
  if (!texts.length) throw new Error(t("import.nothing"));
  for (const text of texts) {
    const value = JSON.parse(text);
    const chats = Array.isArray(value) ? value : Array.isArray(value?.chats) ? value.chats : [value];
    const presets = Array.isArray(value?.presets) ? value.presets : undefined;
    let done = 0;
    for (const part of parts(chats, sum)) {
      onPart(done, chats.length);
      const answer = await ask(`${PATH}/import`, { method: "POST", body: { chats: part, presets: done ? undefined : presets } });
      addTo(sum, answer);
      done += part.length;
    }
  }
}

/** The file of chats goes over in pieces; then its chats are added, some for every answer. */
async function importDatabase(stream, sum, onPart) {
  let copy;
  for await (const data of base64Pieces(stream)) {
    ({ copy } = await ask(`${PATH}/import/database`, { method: "POST", body: { copy, data } }));
  }
  for (let answer = { done: 0, total: 1 }; answer.done < answer.total; ) {
    answer = await ask(`${PATH}/import/database/chats`, { method: "POST", body: { copy } });
    addTo(sum, answer);
    onPart(answer.done, answer.total);
  }
}

function addTo(sum, answer) {
  for (const name of ["added", "updated", "same", "failed"]) sum[name] += answer[name];
  sum.strange ||= answer.faults.some(({ code }) => code === "not_a_chat");
  sum.faults.push(...answer.faults.map(({ code, text }) => said(code, {}, text)));
}

async function* base64Pieces(stream) {
  const reader = stream.getReader();
  let waiting = [];
  let length = 0;
  for (let end = false; !end; ) {
    const { done, value } = await reader.read().catch(() => {
      throw new Error(t("import.nozip"));
    });
    end = done;
    if (value) [waiting, length] = [[...waiting, value], length + value.byteLength];
    if (length < PIECE_BYTES && !end) continue;
    if (length) yield await base64(new Blob(waiting));
    [waiting, length] = [[], 0];
  }
}

function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** Groups of chats that are small enough for one request. */
function* parts(chats, sum) {
  let part = [];
  let length = 0;
  for (const chat of chats) {
    const size = JSON.stringify(chat)?.length ?? 0;
    if (size > LARGEST_CHARACTERS) {
      sum.failed += 1;
      sum.faults.push(t("import.large", { title: String(chat?.title ?? "") }));
      continue;
    }
    if (part.length && length + size > PART_CHARACTERS) {
      yield part;
      [part, length] = [[], 0];
    }
    part.push(chat);
    length += size;
  }
  if (part.length) yield part;
}

/** The JSON texts in a file: its own, or those named conversations….json or octavo….json in a zip. */
async function textsOf(file) {
  if (!(await beginsWith(file, ZIP_MAGIC))) return [await file.text()];
  const entries = await zipEntries(file);
  const wanted = entries.filter(({ name }) => /(^|\/)(conversations|octavo)[^/]*\.json$/i.test(name));
  return Promise.all(wanted.map(async (entry) => new Response(await unzip(file, entry)).text()));
}

/** The bytes of a file of chats: the file's own, or of the one in a zip; null if there is none. */
async function databaseOf(file) {
  if (await beginsWith(file, DATABASE_MAGIC)) return file.stream();
  if (!(await beginsWith(file, ZIP_MAGIC))) return null;
  const entry = (await zipEntries(file)).find(({ name }) => /(^|\/)chats\.sqlite3$/.test(name));
  return entry ? unzip(file, entry) : null;
}

async function beginsWith(file, magic) {
  return (await file.slice(0, magic.length).text()) === magic;
}

// Just so much of ZIP (PKWARE's APPNOTE 4.3) as an export needs: the central directory, stored and deflated entries.

const DIRECTORY_END = 0x06054b50;
const DIRECTORY_ENTRY = 0x02014b50;
const LONGEST_END = 65_557; // the end of the directory with the longest comment

async function zipEntries(file) {
  const tail = new DataView(await file.slice(Math.max(0, file.size - LONGEST_END)).arrayBuffer());
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== DIRECTORY_END) end -= 1;
  if (end < 0) throw new Error(t("import.nozip"));
  const start = tail.getUint32(end + 16, true);
  const directory = new DataView(await file.slice(start, start + tail.getUint32(end + 12, true)).arrayBuffer());
  const entries = [];
  for (let at = 0; at + 46 <= directory.byteLength && directory.getUint32(at, true) === DIRECTORY_ENTRY; ) {
    const nameLength = directory.getUint16(at + 28, true);
    const name = new TextDecoder().decode(new Uint8Array(directory.buffer, at + 46, nameLength));
    entries.push({
      name,
      method: directory.getUint16(at + 10, true),
      size: directory.getUint32(at + 20, true),
      start: directory.getUint32(at + 42, true),
    });
    at += 46 + nameLength + directory.getUint16(at + 30, true) + directory.getUint16(at + 32, true);
  }
  return entries;
}

async function unzip(file, { method, size, start }) {
  const head = new DataView(await file.slice(start, start + 30).arrayBuffer());
  const from = start + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const data = file.slice(from, from + size).stream();
  if (method === 0) return data;
  if (method !== 8) throw new Error(t("import.nozip"));
  return data.pipeThrough(new DecompressionStream("deflate-raw"));
}
