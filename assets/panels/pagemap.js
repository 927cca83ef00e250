// The memory of the chats as a map: a square for each page (or for some), coloured by what holds it.

import { h } from "../dom.js";
import { t } from "../words.js";

const SIDE = 10;
const GAP = 2;
const KINDS = ["used", "shared", "cached", "free"];
const COLOURS = { used: "--map-used", shared: "--map-shared", cached: "--map-cached", free: "--map-free" };

export class PageMap {
  constructor() {
    this.at = null; // the square under the pointer
    this.canvas = h("canvas", { class: "map", role: "img" });
    this.tip = h("p", { class: "map-tip tabular", "aria-live": "off" });
    this.counts = new Map(KINDS.map((kind) => [kind, h("span", { class: "tabular" })]));
    const legend = KINDS.map((kind) => h("span", { class: `key ${kind}` }, h("i", { class: "swatch" }), t(`pages.${kind}`), " ", this.counts.get(kind)));
    this.element = h("div", { class: "map-box" }, h("div", { class: "legend" }, ...legend), this.canvas, this.tip);
    this.canvas.onpointermove = (event) => this.point(event);
    this.canvas.onpointerleave = () => this.say(null);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** How many cells are worth asking for at the present width. */
  get wanted() {
    const columns = Math.max(10, Math.floor((this.canvas.clientWidth + GAP) / (SIDE + GAP)));
    return columns * 12;
  }

  update(map) {
    this.map = map;
    const sum = (index) => map.cells.reduce((total, cell) => total + cell[index], 0);
    const [used, shared, cached] = [sum(0), sum(1), sum(2)];
    const counts = { used: used - shared, shared, cached, free: map.total - used - cached };
    for (const kind of KINDS) this.counts.get(kind).textContent = counts[kind].toLocaleString();
    const words = KINDS.map((kind) => `${t(`pages.${kind}`)} ${counts[kind]}`).join(", ");
    this.canvas.setAttribute("aria-label", `${t("monitor.map")}: ${words}`);
    this.draw();
    this.say(this.at);
  }

  draw() {
    const { canvas, map } = this;
    const width = canvas.clientWidth;
    if (!map || width === 0) return;
    this.columns = Math.max(1, Math.floor((width + GAP) / (SIDE + GAP)));
    const rows = Math.max(1, Math.ceil(map.cells.length / this.columns));
    const height = rows * (SIDE + GAP) - GAP;
    const ratio = devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const style = getComputedStyle(canvas);
    const colours = Object.fromEntries(KINDS.map((kind) => [kind, style.getPropertyValue(COLOURS[kind])]));
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    map.cells.forEach((cell, index) => {
      const x = (index % this.columns) * (SIDE + GAP);
      const y = Math.floor(index / this.columns) * (SIDE + GAP);
      context.fillStyle = colours.free;
      context.fillRect(x, y, SIDE, SIDE);
      // From the bottom: shared, used by one, cached; the rest of the square stays free.
      const [used, shared, cached] = cell;
      let bottom = y + SIDE;
      for (const [kind, count] of [["shared", shared], ["used", used - shared], ["cached", cached]]) {
        if (!count) continue;
        const part = Math.max(2.5, (SIDE * count) / this.size(index));
        context.fillStyle = colours[kind];
        context.fillRect(x, Math.max(y, bottom - part), SIDE, Math.min(part, bottom - y));
        bottom -= part;
      }
    });
  }

  size(index) {
    const { total, per_cell: each } = this.map;
    return Math.min(each, total - index * each);
  }

  point(event) {
    if (!this.map || !this.columns) return;
    const column = Math.floor(event.offsetX / (SIDE + GAP));
    const index = Math.floor(event.offsetY / (SIDE + GAP)) * this.columns + column;
    this.say(column < this.columns && index < this.map.cells.length ? index : null);
  }

  /** Below the map: what is in the square under the pointer, and whose it is. */
  say(index) {
    const { map } = this;
    this.at = index;
    if (index === null || !map || index >= map.cells.length) {
      this.tip.textContent = map?.total ? t(map.slots ? "slots.each" : "pages.each", { n: map.per_cell, m: map.page_size }) : t("pages.none");
      return;
    }
    const [used, shared, cached] = map.cells[index];
    const free = this.size(index) - used - cached;
    const parts = [["used", used - shared], ["shared", shared], ["cached", cached], ["free", free]];
    const what = parts.filter(([, count]) => count).map(([kind, count]) => `${count} ${t(`pages.${kind}`)}`);
    const who = map.owners[index].map((place) => map.chats[place]?.title || t(map.chats[place] ? "chats.untitled" : "pages.stranger"));
    this.tip.textContent = what.join(", ") + (who.length ? ` · ${who.join(", ")}` : "");
  }
}
