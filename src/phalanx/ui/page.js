/* The page: connects session, cluster, map and lists. Everything is drawn at most once per frame. */

import { Chain } from "./chain.js";
import { Cluster } from "./cluster.js";
import { setText } from "./element.js";
import { legendRows } from "./legend.js";
import { List } from "./list.js";
import { Live } from "./live.js";
import { NodeMap } from "./map.js";
import { Throttle } from "./throttle.js";
import { Session } from "./session.js";
import { Theme } from "./theme.js";
import { decisionRows } from "./timeline.js";
import { MAX_ROWS, waitingRows } from "./waiting.js";

/** Minimum milliseconds between two updates of the map, the lists and the selected gang. */
const MAP_INTERVAL = 40;
const LIST_INTERVAL = 250;
const SELECTION_INTERVAL = 2000;
const $ = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.live = this.api = this.cluster = null;
    this.searchText = "";
    this.isMapDirty = true;
    this.mapUpdates = new Throttle(() => this.cluster && this.#drawMap(), MAP_INTERVAL);
    this.listUpdates = new Throttle(() => this.cluster && this.#drawLists(), LIST_INTERVAL);
    this.selectionUpdates = new Throttle(() => this.cluster && this.choose(this.chain.chosen.kind, this.chain.chosen.key), SELECTION_INTERVAL);
    this.theme = new Theme($("theme"), () => this.#redraw());
    this.shown = { waiting: new List($("waiting")), decisions: new List($("decisions")), legend: new List($("legend")) };
    this.session = new Session(
      { form: $("login"), field: $("token"), error: $("error"), leave: $("leave") },
      (api, user) => this.#enter(api, user), () => this.#leave());
    this.#listen();
    this.session.begin();
  }

  #listen() {
    $("search").addEventListener("input", () => { this.searchText = $("search").value.trim().toLowerCase(); this.#redraw(); });
    $("search").addEventListener("keydown", (event) => event.key === "Enter" && this.#chooseFirst());
    $("close").addEventListener("click", () => { this.choose("", ""); $("map").focus(); });
    document.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("visibilitychange", () => (document.hidden ? this.live?.stop() : this.live?.start()));
    new ResizeObserver(() => this.#redraw()).observe($("scroll"));
  }

  #key(event) {
    const typing = event.target.tagName === "INPUT";
    if (event.key === "/" && !typing && this.cluster && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      $("search").focus();
    } else if (event.key === "Escape" && this.cluster) {
      this.choose("", "");
    }
  }

  #enter(api, user) {
    this.api = api;
    this.user = user;
    $("main").hidden = false;
    const cluster = (this.cluster = new Cluster(() => this.#update()));
    const choose = (kind, key) => this.choose(kind, key);
    this.map = new NodeMap($("map"), cluster, {
      theme: this.theme, choose, announce: (text) => setText($("focused"), text), shows: (node) => this.#showsNode(node),
    });
    this.chain = new Chain({ section: $("chosen"), title: $("chosen-title"), body: $("chain") }, cluster, { theme: this.theme, choose });
    this.live = new Live(api, cluster, {
      stateChanged: (state) => this.#showState(state),
      rejected: () => this.session.end("The token is no longer valid."),
    });
    this.live.start();
  }

  #leave() {
    this.live?.stop();
    this.live = this.cluster = null;
    $("main").hidden = true;
    $("chosen").hidden = true;
    for (const list of Object.values(this.shown)) list.show([]);
    for (const id of ["counts", "focused"]) setText($(id), "");
    this.#state("signed out", "");
  }

  #showState({ missing, failure, outage }) {
    if (failure) this.#state(`not up to date: ${failure}`, "no");
    else if (missing.length) this.#state(`loading ${missing.join(", ")}`, "");
    else if (outage) this.#state(outage, "no");
    else this.#state(`live, as ${this.user}`, "yes");
    this.complete = !missing.length;
  }

  #state(text, live) {
    setText($("state"), text);
    $("state").dataset.live = live;
  }

  /** Selects a gang or a node; requests its objects that are not watched again. */
  choose(kind, key) {
    this.map.chosen = { kind, key };
    this.chain.follow(this.api, kind, key);
    this.isMapDirty = true;
    this.mapUpdates.request();
  }

  /** Selects the first gang that matches the search, or else the first node. */
  #chooseFirst() {
    const group = [...this.cluster.groups.values()].find((one) => this.#matches(one.key) || this.#matches(`${one.namespace}/${one.title}`));
    const node = [...this.cluster.nodes.values()].find((one) => this.#showsNode(one));
    if (group && this.searchText) this.choose("gang", group.key);
    else if (node && this.searchText) this.choose("node", node.name);
  }

  #matches(text) {
    return text.toLowerCase().includes(this.searchText);
  }

  /** Returns whether the search matches the node, one of its labels or a gang on it. */
  #showsNode(node) {
    if (!this.searchText) return true;
    if (this.#matches(node.name) || Object.values(node.labels).some((value) => this.#matches(value))) return true;
    return this.cluster.running(node.name).some((pod) => this.#matches(pod.key) || this.#matches(pod.group));
  }

  /** Draws everything again. */
  #redraw() {
    this.isMapDirty = true;
    this.#update();
  }

  /** Draws what has changed in the cluster. */
  #update() {
    this.mapUpdates.request();
    this.listUpdates.request();
  }

  #drawMap() {
    if (this.isMapDirty) this.map.draw();
    else this.map.refresh();
    this.isMapDirty = false;
    if (this.complete && !document.documentElement.dataset.picture) {
      document.documentElement.dataset.picture = String(Math.round(performance.now()));
    }
  }

  #drawLists() {
    const { cluster, theme: { name: theme } } = this;
    const choose = (kind, key) => this.choose(kind, key);
    const matches = (text) => this.#matches(text);
    const all = cluster.waiting();
    const waiting = all.filter((one) => matches(one.key) || matches(`${one.namespace}/${one.title}`));
    this.shown.waiting.show(waitingRows(cluster, waiting, theme, choose));
    this.shown.decisions.show(decisionRows(cluster, matches, theme, choose));
    this.shown.legend.show(legendRows(cluster, matches, theme, choose));
    setText($("waiting-title"), waiting.length > MAX_ROWS ? `Waiting: first ${MAX_ROWS} of ${waiting.length}` : `Waiting: ${waiting.length}`);
    setText($("counts"), `${cluster.nodes.size} nodes · ${cluster.pods.size} pods · ${cluster.groups.size} gangs, ${all.length} waiting`);
    this.chain.draw();
    if (this.chain.chosen.kind === "gang") this.selectionUpdates.request();
  }
}

new Page();
