// What the engine does now and did in the last minutes, where its pages are, what the log says.

import { copyText, h, icon } from "../dom.js";
import { bytes, deviceName, formatName, modelTitle, moment, speed, t } from "../words.js";
import { LogView } from "./log.js";
import { PageMap } from "./pagemap.js";
import { Plot } from "./plot.js";

const PATH = "/api/ui/monitor";
const EVERY_MS = 1000;
const MINUTES = [1, 5, 10];
const MIB = 2 ** 20;
const SPEED_OVER = 4; // samples
const SWITCHES = ["paged_attention", "fusion"];

let monitor = null;

export async function open(root, page) {
  monitor = new Monitor(root, page);
  await monitor.look();
}

export function close() {
  monitor?.end();
  monitor = null;
}

class Monitor {
  constructor(root, page) {
    this.page = page;
    this.samples = [];
    this.minutes = Number(sessionStorage.getItem("octavo-monitor-minutes")) || 5;
    this.tiles = new Map();
    const tiles = ["speed", "batch", "queue", "hits", "drafts", "gpu"].map((name) => this.tile(name));
    this.state = h("p", { class: "state" });
    this.since = h("p", { class: "since" });
    this.map = new PageMap();
    this.switches = h("span", { class: "switches" });
    this.plots = makePlots();
    this.log = new LogView(page, `${PATH}/log`);
    const copy = h("button", { type: "button", class: "plain copy" }, icon("copy"), t("monitor.copy"));
    copy.onclick = () => this.copy(copy);
    root.append(
      this.state,
      h("div", { class: "tiles" }, ...tiles),
      this.since,
      heading("monitor.map", this.switches),
      this.map.element,
      heading("monitor.plots", this.ranges()),
      h("div", { class: "plots" }, ...this.plots.map(({ plot }) => plot.element)),
      heading("monitor.log", copy),
      this.log.element,
    );
    this.timer = setInterval(() => document.hidden || this.look().catch(() => {}), EVERY_MS);
  }

  end() {
    clearInterval(this.timer);
  }

  tile(name) {
    const value = h("span", { class: "value tabular" }, "–");
    const more = h("span", { class: "more tabular" });
    const element = h("div", { class: "tile" }, h("span", { class: "name" }, t(`monitor.tile.${name}`)), value, more);
    this.tiles.set(name, { value, more, element });
    return element;
  }

  ranges() {
    const buttons = MINUTES.map((minutes) => {
      const button = h("button", { type: "button", "aria-pressed": String(minutes === this.minutes) }, t("monitor.minutes", { n: minutes }));
      button.onclick = () => {
        this.minutes = minutes;
        sessionStorage.setItem("octavo-monitor-minutes", String(minutes));
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        this.drawPlots();
      };
      return button;
    });
    return h("span", { class: "ranges", role: "group", "aria-label": t("monitor.range") }, ...buttons);
  }

  async look() {
    if (this.looking) return; // a slow answer must not be overtaken
    this.looking = true;
    try {
      const since = this.samples.at(-1)?.at_s ?? 0;
      const [picture, map] = await Promise.all([
        this.page.get(`${PATH}?since=${since}`),
        this.page.get(`${PATH}/pages?cells=${this.map.wanted}`),
        this.log.look(),
      ]);
      for (const row of picture.samples) {
        this.samples.push(Object.fromEntries(picture.columns.map((name, index) => [name, row[index]])));
      }
      this.samples.splice(0, Math.max(0, this.samples.length - picture.kept));
      this.show(picture);
      if (map) this.map.update(map); // else the engine is busy with a long step
      this.drawPlots();
    } finally {
      this.looking = false;
    }
  }

  show({ now, gpu }) {
    const { model, requests, totals, settings } = now;
    this.state.textContent = [t(`monitor.state.${now.state}`), model.id && modelTitle(model.id, model.format), model.format && formatName(model.format), model.device && deviceName(model.device)].filter(Boolean).join(" · ");
    this.switches.replaceChildren(...SWITCHES.map((name) => switchLink(name, settings[name] ?? settings.engine?.[name])));
    const hasSlots = Boolean(settings.slots); // each a chat's whole context, where nothing is paged
    this.plots.find(({ series }) => series.includes("pages_used")).plot.rename(t(hasSlots ? "monitor.plot.slots" : "monitor.plot.pages"));
    const last = this.samples.at(-1) ?? {};
    const most = Math.min(settings.max_running ?? settings.engine?.max_running, settings.slots ?? Infinity);
    this.put("speed", now.state === "ready" ? t("figures.speed", { n: speed(this.recentSpeed()) }) : "–", t("monitor.total", { n: totals.generated_tokens }));
    this.put("batch", String(requests.running), most ? t("monitor.of", { n: most }) : "");
    this.put("queue", String(requests.waiting), t("monitor.preempted", { n: totals.preemptions }));
    this.put("hits", share(totals.cached_prompt_tokens, totals.prompt_tokens), t("monitor.hits", { n: totals.cached_prompt_tokens }));
    this.put("drafts", share(totals.accepted_tokens, totals.draft_tokens), settings.speculation?.mode === "off" ? t("monitor.drafts.off") : t("monitor.drafts", { n: totals.accepted_tokens }));
    this.since.textContent = t("monitor.since", { time: moment(totals.since_s) });
    const tile = this.tiles.get("gpu");
    if (gpu) {
      this.put("gpu", gpu.load === null ? bytes(gpu.used_bytes) : percent(gpu.load), t("monitor.memory", { used: bytes(gpu.used_bytes), total: bytes(gpu.total_bytes) }));
      const more = [gpu.temperature_c === null ? null : `${gpu.temperature_c} °C`, gpu.power_w === null ? null : `${Math.round(gpu.power_w)} W`];
      tile.element.title = [gpu.name, ...more.filter(Boolean)].join(" · ");
    } else {
      tile.element.firstChild.textContent = t("monitor.tile.processor");
      this.put("gpu", percent(last.processor_share ?? 0), t("monitor.process", { used: bytes(last.process_bytes ?? 0) }));
    }
  }

  /** Over a few seconds: on a slow machine a step may take longer than one. */
  recentSpeed() {
    const recent = this.samples.slice(-SPEED_OVER);
    return recent.reduce((sum, sample) => sum + sample.generated_tok_s, 0) / Math.max(1, recent.length);
  }

  put(name, value, more) {
    const tile = this.tiles.get(name);
    tile.value.textContent = value;
    tile.more.textContent = more;
  }

  drawPlots() {
    const now = this.samples.at(-1)?.at_s ?? Date.now() / 1000;
    for (const { plot, series } of this.plots) {
      const known = this.samples.some((sample) => series.some((name) => sample[name] !== null && sample[name] !== undefined));
      plot.element.hidden = !known;
      if (known) plot.update(this.samples, this.minutes * 60, now);
    }
  }

  async copy(button) {
    button.disabled = true;
    try {
      const { text } = await this.page.get(`${PATH}/diagnostics`);
      await copyText(text);
      this.page.toast(t("monitor.copied"));
    } catch (failure) {
      this.page.toast(failure.message, { kind: "error" });
    } finally {
      button.disabled = false;
    }
  }
}

function makePlots() {
  const rate = (value) => t("figures.speed", { n: speed(value) });
  const count = (value) => String(Math.round(value));
  const one = (key, name, format, most = null, unit = 1) => ({
    title: t(key),
    format,
    most,
    unit,
    series: [{ name, label: "", colour: "--plot-1", fill: true }],
  });
  const two = (key, format, first, second, options = {}) => ({
    title: t(key),
    format,
    series: [
      { name: first[0], label: t(first[1]), colour: "--plot-1", fill: true },
      { name: second[0], label: t(second[1]), colour: "--plot-2", fill: Boolean(options.stacked) },
    ],
    ...options,
  });
  const plans = [
    one("monitor.plot.generated", "generated_tok_s", rate),
    two("monitor.plot.prompt", rate, ["prompt_tok_s", "monitor.all"], ["computed_prompt_tok_s", "monitor.computed"]),
    two("monitor.plot.requests", count, ["running", "monitor.running"], ["waiting", "monitor.waiting"]),
    two("monitor.plot.pages", count, ["pages_used", "pages.used"], ["pages_cached", "pages.cached"], { stacked: true }),
    one("monitor.plot.hits", "hit_share", percent, 1),
    one("monitor.plot.drafts", "accepted_share", percent, 1),
    one("monitor.plot.gpu", "gpu_load", percent, 1),
    one("monitor.plot.gpumemory", "gpu_used_bytes", bytes, null, MIB),
    one("monitor.plot.processor", "processor_share", percent, 1),
    one("monitor.plot.process", "process_bytes", bytes, null, MIB),
  ];
  return plans.map((plan) => ({ plot: new Plot(plan), series: plan.series.map(({ name }) => name) }));
}

/** Whether one of the two great switches is on, leading to where it can be turned. */
function switchLink(name, on) {
  const state = t(on ? "settings.on" : "settings.off");
  return h("a", { href: "#settings/speed", title: t("monitor.switches"), class: on ? "on" : "off" }, t(`monitor.${name}`), " ", h("strong", {}, state));
}

function heading(key, extra) {
  return h("div", { class: "heading" }, h("h2", {}, t(key)), extra);
}

function percent(value) {
  return `${Math.round(value * 100)} %`;
}

function share(part, whole) {
  return whole ? percent(part / whole) : "–";
}
