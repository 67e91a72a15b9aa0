/* The page: session, cluster, map and lists wired together. Everything is drawn at most once per frame. */

import { Chain } from "./chain.js";
import { Cluster } from "./cluster.js";
import { say } from "./element.js";
import { legendRows } from "./legend.js";
import { List } from "./list.js";
import { Live } from "./live.js";
import { NodeMap } from "./map.js";
import { Rhythm } from "./rhythm.js";
import { Session } from "./session.js";
import { Theme } from "./theme.js";
import { decisionRows } from "./timeline.js";
import { MOST, waitingRows } from "./waiting.js";

/** Milliseconds between two pictures, at least. */
const MAPS = 40;
const LISTS = 250;
const ASKED_AGAIN = 2000;
const $ = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.live = this.api = this.cluster = null;
    this.wanted = "";
    this.whole = true;
    this.maps = new Rhythm(() => this.cluster && this.#drawMap(), MAPS);
    this.lists = new Rhythm(() => this.cluster && this.#drawLists(), LISTS);
    this.facts = new Rhythm(() => this.cluster && this.choose(this.chain.chosen.kind, this.chain.chosen.key), ASKED_AGAIN);
    this.theme = new Theme($("theme"), () => this.#redraw());
    this.shown = { waiting: new List($("waiting")), decisions: new List($("decisions")), legend: new List($("legend")) };
    this.session = new Session(
      { form: $("login"), field: $("token"), refusal: $("refusal"), leave: $("leave") },
      (api, user) => this.#enter(api, user), () => this.#leave());
    this.#listen();
    this.session.begin();
  }

  #listen() {
    $("search").addEventListener("input", () => { this.wanted = $("search").value.trim().toLowerCase(); this.#redraw(); });
    $("search").addEventListener("keydown", (event) => event.key === "Enter" && this.#first());
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
    const cluster = (this.cluster = new Cluster(() => this.#renew()));
    const choose = (kind, key) => this.choose(kind, key);
    this.map = new NodeMap($("map"), cluster, {
      theme: this.theme, choose, told: (text) => say($("spot"), text), shows: (node) => this.#showsNode(node),
    });
    this.chain = new Chain({ section: $("chosen"), title: $("chosen-title"), body: $("chain") }, cluster, { theme: this.theme, choose });
    this.live = new Live(api, cluster, {
      heard: (state) => this.#heard(state),
      refused: () => this.session.end("This token no longer counts."),
    });
    this.live.start();
  }

  #leave() {
    this.live?.stop();
    this.live = this.cluster = null;
    $("main").hidden = true;
    $("chosen").hidden = true;
    for (const list of Object.values(this.shown)) list.show([]);
    for (const id of ["counts", "spot"]) say($(id), "");
    this.#state("signed out", "");
  }

  #heard({ missing, trouble }) {
    if (trouble) this.#state(`not up to date: ${trouble}`, "no");
    else if (missing.length) this.#state(`loading ${missing.join(", ")}`, "");
    else this.#state(`live, as ${this.user}`, "yes");
    this.complete = !missing.length;
  }

  #state(text, live) {
    say($("state"), text);
    $("state").dataset.live = live;
  }

  /** Shows a gang or a node; shown already, asks again what is not watched. */
  choose(kind, key) {
    this.map.chosen = { kind, key };
    this.chain.follow(this.api, kind, key);
    this.whole = true;
    this.maps.ask();
  }

  /** The first gang that is searched for, or else the first node. */
  #first() {
    const group = [...this.cluster.groups.values()].find((one) => this.#matches(one.key) || this.#matches(`${one.namespace}/${one.title}`));
    const node = [...this.cluster.nodes.values()].find((one) => this.#showsNode(one));
    if (group && this.wanted) this.choose("gang", group.key);
    else if (node && this.wanted) this.choose("node", node.name);
  }

  #matches(text) {
    return text.toLowerCase().includes(this.wanted);
  }

  /** A node is shown if it, its place or a gang on it is searched for. */
  #showsNode(node) {
    if (!this.wanted) return true;
    if (this.#matches(node.name) || Object.values(node.labels).some((value) => this.#matches(value))) return true;
    return this.cluster.running(node.name).some((pod) => this.#matches(pod.key) || this.#matches(pod.group));
  }

  /** Everything, however the cluster is. */
  #redraw() {
    this.whole = true;
    this.#renew();
  }

  /** What has changed of the cluster. */
  #renew() {
    this.maps.ask();
    this.lists.ask();
  }

  #drawMap() {
    if (this.whole) this.map.draw();
    else this.map.refresh();
    this.whole = false;
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
    say($("waiting-title"), waiting.length > MOST ? `Waiting: first ${MOST} of ${waiting.length}` : `Waiting: ${waiting.length}`);
    say($("counts"), `${cluster.nodes.size} nodes · ${cluster.pods.size} pods · ${cluster.groups.size} gangs, ${all.length} waiting`);
    this.chain.draw();
    if (this.chain.chosen.kind === "gang") this.facts.ask();
  }
}

new Page();
