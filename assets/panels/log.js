// The log's last lines, newest at the bottom; stays where the reader put it.

import { h } from "../dom.js";
import { t } from "../words.js";

const KEPT = 500;
const LEVELS = ["debug", "info", "warning", "error"];

export class LogView {
  constructor(page, path) {
    this.page = page;
    this.path = path;
    this.last = 0;
    this.lines = h("div", { class: "log-lines", tabindex: "0", role: "log", "aria-live": "off", "aria-label": t("monitor.log") });
    this.file = h("code", {});
    this.level = h("select", { "aria-label": t("log.level") }, ...LEVELS.map((level) => h("option", { value: level }, t(`log.from.${level}`))));
    this.level.value = sessionStorage.getItem("octavo-log-level") ?? "info";
    this.level.onchange = () => {
      sessionStorage.setItem("octavo-log-level", this.level.value);
      this.filter();
    };
    this.element = h("div", { class: "log-box" }, this.lines, h("div", { class: "log-foot" }, this.level, this.file));
    this.filter();
  }

  async look() {
    const { file, lines } = await this.page.get(`${this.path}?after=${this.last}`);
    this.file.textContent = file;
    if (!lines.length) return;
    this.last = lines.at(-1).number;
    const { scrollTop, scrollHeight, clientHeight } = this.lines;
    const atEnd = scrollHeight - scrollTop - clientHeight < 24;
    this.lines.append(...lines.map(line));
    while (this.lines.childElementCount > KEPT) this.lines.firstChild.remove();
    if (atEnd) this.lines.scrollTop = this.lines.scrollHeight;
  }

  filter() {
    this.lines.dataset.from = this.level.value;
    this.lines.scrollTop = this.lines.scrollHeight;
  }
}

function line({ at_s: at, level, source, text, trace }) {
  const time = new Date(at * 1000).toLocaleTimeString([], { hour12: false });
  return h(
    "p",
    { class: LEVELS.includes(level) ? level : "error", title: source },
    h("time", {}, time),
    " ",
    text,
    trace && h("details", {}, h("summary", {}, t("log.trace")), h("pre", {}, trace)),
  );
}
