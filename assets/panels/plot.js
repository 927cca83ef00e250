// A small plot over time on a canvas: lines or filled areas, one scale, and what stood where the pointer is.

import { h } from "../dom.js";

const HEIGHT = 72;
const PAD_TOP = 6;
const GAP_S = 5; // a longer silence (the machine slept) breaks the line

export class Plot {
  /** `series`: [{name, label, colour, fill}]; `format(value)` makes words of a number; `most`: a fixed
   *  scale, or null; `unit`: what the scale's steps are round in. */
  constructor({ title, series, format, most = null, unit = 1, stacked = false }) {
    this.series = series;
    this.format = format;
    this.most = most;
    this.unit = unit;
    this.stacked = stacked;
    this.pointer = null;
    this.now = h("span", { class: "now tabular" });
    this.canvas = h("canvas", { class: "plot", role: "img", "aria-label": title });
    this.scale = h("span", { class: "scale tabular" });
    this.tip = h("div", { class: "plot-tip tabular", hidden: true });
    this.title = title;
    const keys = series.length > 1 ? series.map(({ label, colour }) => h("span", { class: "key" }, swatch(colour), label)) : [];
    this.element = h(
      "figure",
      { class: "plot-box" },
      h("figcaption", {}, h("span", { class: "plot-title" }, title), this.now),
      h("div", { class: "plot-area" }, this.canvas, this.scale, this.tip),
      ...(keys.length ? [h("div", { class: "legend" }, ...keys)] : []),
    );
    this.canvas.onpointermove = (event) => {
      this.pointer = event.offsetX;
      this.draw();
    };
    this.canvas.onpointerleave = () => {
      this.pointer = null;
      this.draw();
    };
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  rename(title) {
    this.title = this.element.querySelector(".plot-title").textContent = title;
  }

  /** `samples`: objects with `at_s` and a number or null for each series; the last `seconds` are shown. */
  update(samples, seconds, nowS) {
    this.samples = samples;
    this.begin = nowS - seconds;
    this.end = nowS;
    const last = samples.at(-1);
    const values = this.series.map(({ name }) => last?.[name]).filter((value) => value !== null && value !== undefined);
    this.now.textContent = values.map(this.format).join(" · ");
    this.canvas.setAttribute("aria-label", `${this.title}: ${this.now.textContent}`);
    this.draw();
  }

  draw() {
    const { canvas } = this;
    const width = canvas.clientWidth;
    if (!this.samples || width === 0) return;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(HEIGHT * ratio);
    }
    const style = getComputedStyle(canvas);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, HEIGHT);
    const shown = this.samples.filter(({ at_s: at }) => at >= this.begin - GAP_S);
    const rows = shown.map((sample) => this.levels(sample));
    const highest = this.most ?? rows.flat().reduce((a, b) => Math.max(a, b ?? 0), 0);
    const top = this.most ?? niceAbove(highest / this.unit) * this.unit;
    this.scale.textContent = highest > 0 ? this.format(top) : "";
    const x = (at) => ((at - this.begin) / (this.end - this.begin)) * width;
    const y = (value) => HEIGHT - 1 - (Math.min(value, top) / (top || 1)) * (HEIGHT - PAD_TOP - 1);
    const ground = style.getPropertyValue("--paper");
    context.strokeStyle = style.getPropertyValue("--border");
    context.lineWidth = 1;
    for (const share of [0, 0.5, 1]) {
      const at = Math.round(y(top * share)) + 0.5;
      context.beginPath();
      context.moveTo(0, at);
      context.lineTo(width, at);
      context.stroke();
    }
    for (let index = this.series.length - 1; index >= 0; index--) {
      const look = { colour: style.getPropertyValue(this.series[index].colour), fill: this.series[index].fill, ground };
      for (const run of runs(shown, rows, index)) this.line(context, run, x, y, look);
    }
    this.point(context, shown, x, y, rows, style);
  }

  /** The heights of a sample's series: added up where they are stacked. */
  levels(sample) {
    let below = 0;
    return this.series.map(({ name }) => {
      const value = sample[name];
      if (value === null || value === undefined) return null;
      if (!this.stacked) return value;
      below += value;
      return below;
    });
  }

  line(context, run, x, y, { colour, fill, ground }) {
    context.beginPath();
    run.forEach(([at, value], index) => (index ? context.lineTo(x(at), y(value)) : context.moveTo(x(at), y(value))));
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    if (run.length === 1) {
      context.arc(x(run[0][0]), y(run[0][1]), 2, 0, 2 * Math.PI);
      context.fill();
      return;
    }
    context.stroke();
    if (!fill) return;
    context.lineTo(x(run.at(-1)[0]), HEIGHT);
    context.lineTo(x(run[0][0]), HEIGHT);
    context.closePath();
    if (this.stacked) {
      context.fillStyle = ground; // what is stacked above shines through otherwise
      context.fill();
    }
    context.globalAlpha = 0.16;
    context.fillStyle = colour;
    context.fill();
    context.globalAlpha = 1;
  }

  /** What stood at the pointer. */
  point(context, shown, x, y, rows, style) {
    this.tip.hidden = this.pointer === null || shown.length === 0;
    if (this.tip.hidden) return;
    let best = 0;
    for (let index = 1; index < shown.length; index++) {
      if (Math.abs(x(shown[index].at_s) - this.pointer) < Math.abs(x(shown[best].at_s) - this.pointer)) best = index;
    }
    const at = x(shown[best].at_s);
    context.strokeStyle = style.getPropertyValue("--strong-border");
    context.beginPath();
    context.moveTo(at, 0);
    context.lineTo(at, HEIGHT);
    context.stroke();
    const words = this.series.map(({ name, label }) => {
      const value = shown[best][name];
      if (value === null || value === undefined) return null;
      return this.series.length > 1 ? `${label} ${this.format(value)}` : this.format(value);
    });
    const time = new Date(shown[best].at_s * 1000).toLocaleTimeString();
    this.tip.textContent = [time, ...words.filter(Boolean)].join(" · ");
    this.tip.classList.toggle("left", at > this.canvas.clientWidth / 2);
  }
}

function swatch(colour) {
  const mark = h("i", { class: "swatch" });
  mark.style.background = `var(${colour})`;
  return mark;
}

/** Stretches of a series without a gap: [[at, value], …]. */
function runs(samples, rows, index) {
  const found = [];
  let before = null;
  samples.forEach(({ at_s: at }, place) => {
    const value = rows[place][index];
    if (value === null) {
      before = null;
      return;
    }
    if (before === null || at - before > GAP_S) found.push([]);
    found.at(-1).push([at, value]);
    before = at;
  });
  return found;
}

/** 1, 2 or 5 times a power of ten, at or above `value`. */
export function niceAbove(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
