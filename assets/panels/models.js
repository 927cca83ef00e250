// The models panel: what runs, what is being fetched, what is on this disk, what the hub has, and where things lie.

import { PATH, fetchModel, loadModel, tell, unloadModel } from "../model_actions.js";
import { Access } from "./models_access.js";
import { Fetching } from "./models_fetching.js";
import { Hub } from "./models_hub.js";
import { LocalModels } from "./models_local.js";
import { Running } from "./models_running.js";

let panel = null;

export async function open(root, page) {
  panel = new ModelsPanel(root, page);
  await panel.start();
}

export function close() {
  panel = null;
}

/** The address may name what is wanted: #models/get, #models/disk, #models/token. */
export function route(path) {
  panel?.scrollTo(path);
}

class ModelsPanel {
  constructor(root, page) {
    this.root = root;
    this.page = page;
    this.news = null;
    const actions = new Actions(page, () => this.news, (path) => this.scrollTo(path));
    this.running = new Running(actions);
    this.fetching = new Fetching(actions);
    this.local = new LocalModels(actions);
    this.hub = new Hub(actions);
    this.access = new Access(actions, () => this.refresh());
    this.parts = [
      ["now", this.running.element],
      ["downloads", this.fetching.element],
      ["disk", this.local.element],
      ["get", this.hub.element],
      ["token", this.access.element],
    ];
    for (const [name, element] of this.parts) element.dataset.section = name;
    root.append(...this.parts.map(([, element]) => element));
  }

  async start() {
    await this.refresh();
    this.page.on("models", (news) => this.take(news));
    if (this.page.path) this.scrollTo(this.page.path);
  }

  async refresh() {
    const overview = await this.page.get(PATH);
    if (!this.root.isConnected) return;
    this.overview = overview;
    this.running.machine(overview.machine);
    this.local.list(overview);
    this.hub.overview(overview);
    this.access.overview(overview);
    if (this.news) this.take(this.news);
  }

  take(news) {
    const changed = this.news !== null && this.news.list !== news.list;
    const loaded = this.news !== null && (this.news.state !== news.state || this.news.id !== news.id);
    this.news = news;
    this.running.update(news);
    this.fetching.update(news.downloads);
    this.local.update(news);
    this.hub.update(news.downloads);
    if (changed || loaded) this.refresh().catch(() => null);
  }

  scrollTo(name) {
    const element = this.parts.find(([own]) => own === name)?.[1];
    if (!element) return;
    element.scrollIntoView({ block: "start" });
    (element.querySelector("input") ?? element.querySelector("button:not([hidden])"))?.focus({ preventScroll: true });
  }
}

/** What the parts of the panel can do. */
class Actions {
  constructor(page, news, goTo) {
    this.page = page;
    this.news = news;
    this.goTo = goTo;
    this.tell = tell;
    this.load = loadModel;
    this.unload = unloadModel;
  }

  send(path, body) {
    return this.page.send(`${PATH}${path}`, body);
  }

  async download(id, options) {
    if (await fetchModel(id, options)) this.goTo("downloads");
  }
}
