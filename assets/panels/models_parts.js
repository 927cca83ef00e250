// Small things that several parts of the models panel draw.

import { h } from "../dom.js";
import { language } from "../strings.js";
import { bytes, short, t } from "../words.js";

/** 134 M, 8.2 B: a number of parameters. */
export function parameters(n) {
  if (!n) return "";
  const [size, letter] = n >= 1e9 ? [n / 1e9, "B"] : [n / 1e6, "M"];
  return `${size >= 100 ? Math.round(size) : Math.round(size * 10) / 10}${letter}`;
}

const compact = new Intl.NumberFormat(language, { notation: "compact", maximumFractionDigits: 1 });

/** 91K, 9.1万: how often something was fetched. */
export function count(n) {
  return compact.format(n);
}

/** The owner and the name of a model's id, the name in front. */
export function modelName(id) {
  const place = id.indexOf("/");
  const isHub = place > 0 && id.indexOf("/", place + 1) < 0 && !id.startsWith(".");
  if (!isHub) return [h("span", { class: "name" }, id)];
  const [name, variant] = id.slice(place + 1).split(":");
  return [
    h("span", { class: "name" }, name, variant ? h("span", { class: "variant" }, variant) : null),
    h("span", { class: "owner" }, id.slice(0, place)),
  ];
}

/** Facts on one line, empty ones left out. */
export function facts(...parts) {
  const shown = parts.filter((part) => part !== null && part !== undefined && part !== "" && part !== false);
  const spans = shown.map((part) => h("span", {}, part));
  return h("p", { class: "facts" }, ...spans.flatMap((span, at) => (at ? [h("span", { class: "between" }, "·"), span] : [span])));
}

export function tokens(n) {
  return n ? t("models.context", { n: short(n) }) : null;
}

/** A progress bar; `share` null: nobody knows how far. */
export class Bar {
  constructor(label) {
    this.fill = h("span", { class: "done" });
    this.element = h(
      "span",
      { class: "meter large", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100", "aria-label": label },
      this.fill,
    );
  }

  set(share) {
    this.element.classList.toggle("unknown", share === null);
    this.fill.style.width = share === null ? "" : `${Math.min(1, share) * 100}%`;
    if (share === null) this.element.removeAttribute("aria-valuenow");
    else this.element.setAttribute("aria-valuenow", String(Math.round(share * 100)));
  }
}

/** What an estimate says, as a bar of its parts against what is free, and a sentence. */
export function fitPicture({ fit }) {
  const available = fit.available_bytes;
  const scale = Math.max(available, fit.total_bytes, 1);
  const part = (name, size) => {
    const label = t(`models.fit.${name}`);
    const piece = h("span", { class: `piece ${name}`, title: `${label}: ${bytes(size)}` });
    piece.style.width = `${(size / scale) * 100}%`;
    return piece;
  };
  const track = h(
    "span",
    { class: `fit-track ${fit.verdict}`, "aria-hidden": "true" },
    part("weights", fit.weight_bytes),
    part("kv", fit.kv_bytes),
    part("work", fit.workspace_bytes),
  );
  if (available < scale) {
    const limit = h("span", { class: "limit" }); // what is wanted goes past it
    limit.style.insetInlineStart = `${(available / scale) * 100}%`;
    track.append(limit);
  }
  const legend = h(
    "span",
    { class: "fit-legend tabular" },
    legendOf("weights", fit.weight_bytes),
    legendOf("kv", fit.kv_bytes),
    legendOf("work", fit.workspace_bytes),
    h("span", { class: "free" }, t(fit.held_bytes ? "models.fit.held" : "models.fit.free", { n: bytes(available) })),
  );
  return h("div", { class: "fit-picture" }, track, legend);
}

function legendOf(name, size) {
  return h("span", { class: `key ${name}` }, h("i", {}), `${t(`models.fit.${name}`)} ${bytes(size)}`);
}

/** "It fits.", or what to do so that it does; `take` is called with {context_length} or {quantization}. Where the
 * context is chosen later (`lengths` false) only formats are offered. */
export function fitVerdict({ fit, alternatives, best }, take, { lengths = true } = {}) {
  const line = h("p", { class: `verdict ${fit.verdict}` });
  if (fit.verdict === "fits") {
    line.append(t("models.fit.fits"));
    return line;
  }
  line.append(fit.verdict === "shorter" ? t("models.fit.shorter", { n: fit.longest_context }) : t("models.fit.no"));
  const offer = (label, choice) => line.append(" ", h("button", { type: "button", class: "link", onclick: () => take(choice) }, label));
  if (fit.verdict === "shorter" && lengths) {
    const round = fit.longest_context >= 2048 ? Math.floor(fit.longest_context / 1024) * 1024 : fit.longest_context;
    offer(t("models.fit.shorter.do", { n: round }), { context_length: round });
  }
  const other = alternatives.find((row) => row.quantization === best);
  if (other && best !== fit.quantization && (other.verdict === "fits" || fit.verdict === "no")) {
    line.append(" ", t("models.fit.as", { format: best }));
    offer(t("models.fit.as.do", { format: best }), { quantization: best });
  } else if (fit.verdict === "no") {
    line.append(" ", t("models.fit.nothing"));
  }
  return line;
}

/** A part of the panel under its heading. */
export function section(title, ...content) {
  const id = `models-${Math.random().toString(36).slice(2)}`;
  return h("section", { "aria-labelledby": id }, h("h2", { id }, title), ...content);
}
