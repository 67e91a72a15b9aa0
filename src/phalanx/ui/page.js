/* The page: connects session, cluster, addresses and views. Everything is drawn at most once per frame. */

import { Cluster } from "./cluster.js";
import { decisionRows } from "./decision_rows.js";
import { Detail } from "./detail.js";
import { setText } from "./element.js";
import { FirstSteps } from "./first_steps.js";
import { ForecastView } from "./forecast.js";
import { formatMoment, plural } from "./format.js";
import { GangsView } from "./gangs.js";
import { legendRows } from "./legend.js";
import { List } from "./list.js";
import { Live } from "./live.js";
import { NodeMap } from "./map.js";
import { Queue } from "./queue.js";
import { defaultNamespace, hiddenText, Rights } from "./rights.js";
import { keyOf } from "./rows.js";
import { hrefOf, OVERVIEW, parseRoute } from "./route.js";
import { Session } from "./session.js";
import { countStates, stateLabel } from "./states.js";
import { Theme } from "./theme.js";
import { Throttle } from "./throttle.js";
import { Utilisation, UtilisationView } from "./utilisation.js";
import { MAX_ROWS, waitingRows } from "./waiting.js";

/** Minimum milliseconds between two updates of the map, the lists, the objects of the detail page and the utilisation. */
const MAP_INTERVAL = 40;
const LIST_INTERVAL = 250;
const DETAIL_INTERVAL = 2000;
const UTILISATION_INTERVAL = 1000;
const WITH_MAP = new Set(["overview", "detail"]);
const TITLES = { overview: "Phalanx", gangs: "Gangs · Phalanx", forecast: "Forecast · Phalanx" };
const $ = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.live = this.api = this.cluster = null;
    this.route = OVERVIEW;
    this.searchText = "";
    this.isMapDirty = true;
    this.mapUpdates = new Throttle(() => this.cluster && this.#drawMap(), MAP_INTERVAL);
    this.listUpdates = new Throttle(() => this.cluster && this.#drawView(), LIST_INTERVAL);
    this.detailUpdates = new Throttle(() => this.cluster && this.detail.follow(this.api, this.route.kind, this.route.key), DETAIL_INTERVAL);
    this.utilisationUpdates = new Throttle(() => this.cluster && this.utilisationView.draw(this.cluster, this.history), UTILISATION_INTERVAL);
    this.theme = new Theme($("theme"), () => this.#redraw());
    this.shown = { waiting: new List($("waiting")), decisions: new List($("decisions")), legend: new List($("legend")) };
    this.firstSteps = new FirstSteps({ section: $("first"), body: $("first-steps") });
    this.rights = new Rights({ form: $("rights"), text: $("rights-text"), scope: $("rights-scope"), field: $("rights-namespace") },
      (namespace) => this.#watch(namespace));
    this.utilisationView = new UtilisationView({ cards: $("cards"), ranges: $("ranges"), note: $("utilisation-note") });
    this.session = new Session(
      { form: $("login"), field: $("token"), error: $("error"), leave: $("leave") },
      (api, user) => this.#enter(api, user), () => this.#leave());
    this.#listen();
    this.session.begin();
  }

  #listen() {
    $("search").addEventListener("input", () => { this.searchText = $("search").value.trim().toLowerCase(); this.#redraw(); });
    $("search").addEventListener("keydown", (event) => event.key === "Enter" && this.#openFirst());
    $("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
    document.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#pause() : this.#resume()));
    addEventListener("hashchange", () => this.cluster && this.#follow());
    new ResizeObserver(() => this.#redraw()).observe($("scroll"));
  }

  #key(event) {
    const typing = ["INPUT", "SELECT"].includes(event.target.tagName);
    if (event.key === "/" && !typing && this.cluster && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      $("search").focus();
    } else if (event.key === "Escape" && this.cluster && this.route.view === "detail") {
      location.hash = "#/";
    }
  }

  #enter(api, user) {
    Object.assign(this, { api, user });
    for (const id of ["main", "nav", "search-label"]) $(id).hidden = false;
    this.#watch(defaultNamespace(user));
  }

  /** Watches all namespaces, or only one. */
  #watch(namespace) {
    this.#pause();
    this.detail?.log.close();
    this.complete = false;
    const cluster = (this.cluster = new Cluster(() => this.#update()));
    const { theme, api } = this;
    this.queue = new Queue(api, () => this.listUpdates.request());
    this.queue.namespace = namespace;
    this.history = new Utilisation(api, () => this.listUpdates.request());
    const open = (kind, key) => { location.hash = kind ? hrefOf(kind, key) : "#/"; };
    this.map ??= new NodeMap($("map"), cluster, {
      theme, choose: open, announce: (text) => setText($("focused"), text), shows: (node) => this.#showsNode(node),
    });
    this.map.cluster = cluster;
    this.detail = new Detail(
      { section: $("chosen"), title: $("chosen-title"), state: $("chosen-state"), body: $("detail"),
        log: { section: $("log"), text: $("log-text"), containers: $("log-containers"), note: $("log-note") } },
      cluster, { theme, queue: this.queue });
    this.gangs?.close();
    this.gangs = new GangsView(
      { table: $("gang-table"), states: $("gang-states"), namespace: $("gang-namespace"), empty: $("gangs-empty"), title: $("gangs-title") },
      cluster, { theme, navigate: (href) => { history.replaceState(null, "", href); this.#follow(); } });
    this.forecast = new ForecastView({ summary: $("forecast-summary"), axis: $("forecast-axis"), list: $("forecast-list") }, cluster, { theme });
    this.live = new Live(api, cluster, {
      namespace, stateChanged: (state) => this.#showState(state), rejected: () => this.session.end("The token is no longer valid."),
    });
    this.rights.begin(namespace);
    this.#resume();
    this.#follow();
  }

  #resume() {
    if (!this.live || (this.stopper && !this.stopper.signal.aborted)) return;
    this.stopper = new AbortController();
    this.live.start();
    if (this.complete) this.#readReports();
  }

  /** Reads queue and utilisation: after the lists, which the map needs and which take the server long in a large cluster. */
  #readReports() {
    const { signal } = this.stopper ?? {};
    if (!signal || this.reading === signal) return;
    this.reading = signal;
    this.queue.run(signal);
    this.history.run(signal);
  }

  #pause() {
    this.live?.stop();
    this.stopper?.abort();
  }

  #leave() {
    this.#pause();
    this.detail?.log.close();
    this.live = this.cluster = null;
    for (const id of ["main", "nav", "search-label", "chosen", "rights"]) $(id).hidden = true;
    for (const list of Object.values(this.shown)) list.show([]);
    for (const id of ["counts", "focused"]) setText($(id), "");
    this.#state("signed out", "");
  }

  #showState({ missing, denied, failure, outage }) {
    if (failure) this.#state(`not up to date: ${failure}`, "no");
    else if (missing.length) this.#state(`loading ${missing.join(", ")}`, "");
    else if (outage) this.#state(outage, "no");
    else this.#state(`live, as ${this.user}`, "yes");
    this.complete = !missing.length;
    this.denied = new Set(denied);
    this.rights.show(this.denied);
    if (this.complete || failure) this.#readReports();
    if (this.complete) this.#update();
  }

  #state(text, live) {
    setText($("state"), text);
    $("state").dataset.live = live;
  }

  /** Shows what the address names. */
  #follow() {
    const before = this.route;
    const { view, kind, key, query } = (this.route = parseRoute(location.hash));
    const isOther = view !== before.view || kind !== before.kind || key !== before.key;
    $("main").dataset.view = view;
    for (const link of $("nav").querySelectorAll("a")) {
      if (link.dataset.view === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = TITLES[view] ?? `${key} · Phalanx`;
    if (view === "gangs") this.gangs.follow(query);
    this.detail.follow(this.api, kind, key);
    this.#redraw();
    if (!isOther) return;
    if (view === "detail") $("chosen-title").focus();
    $("chosen").scrollTop = 0;
  }

  /** Returns what the map shows in full: a node, a gang, the gang of a Job or of a pod. */
  #highlight(kind, key) {
    if (kind === "node") return { kind, key };
    if (kind === "gang") return { kind, key: this.cluster.findGang(key) };
    const isOwned = (one) => one.owner?.kind === "Job" && keyOf(one.namespace, one.owner.name) === key;
    const group = kind === "job" ? [...this.cluster.groups.values()].find(isOwned)?.key : kind === "pod" ? this.cluster.pods.get(key)?.group : "";
    return group ? { kind: "gang", key: group } : { kind: "", key: "" };
  }

  /** Opens the first gang that matches the search, or else the first node. */
  #openFirst() {
    if (!this.searchText) return;
    const group = [...this.cluster.groups.values()].find((one) => this.#matches(one.key) || this.#matches(`${one.namespace}/${one.title}`));
    const node = [...this.cluster.nodes.values()].find((one) => this.#showsNode(one));
    if (group) location.hash = hrefOf("gang", group.key);
    else if (node) location.hash = hrefOf("node", node.name);
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
    if (!WITH_MAP.has(this.route.view)) return;
    const isEmpty = !this.cluster.nodes.size;
    $("map").hidden = isEmpty;
    setText($("map-empty"), !isEmpty || !this.complete ? "" : this.denied.has("nodes") ? "You may not list nodes." : "There are no nodes.");
    const chosen = this.#highlight(this.route.kind, this.route.key);
    this.isMapDirty ||= chosen.key !== this.map.chosen.key;
    this.map.chosen = chosen;
    if (this.isMapDirty) this.map.draw();
    else this.map.refresh();
    this.isMapDirty = false;
    if (this.complete && !document.documentElement.dataset.picture) {
      document.documentElement.dataset.picture = String(Math.round(performance.now()));
    }
  }

  #drawView() {
    const { cluster, queue, route: { view } } = this;
    const matches = (text) => this.#matches(text);
    setText($("counts"), this.#countsText());
    if (WITH_MAP.has(view)) this.shown.legend.show(legendRows(cluster, matches, this.theme.name));
    if (view === "overview") this.#drawOverview(matches);
    if (view === "gangs") this.gangs.draw(queue, matches);
    if (view === "forecast") this.forecast.draw(queue, matches);
    if (view === "detail") {
      this.detail.draw(this.api);
      this.detailUpdates.request();
    }
  }

  #countsText() {
    const { cluster, queue } = this;
    const states = countStates(queue.items ?? []).map(([state, count]) => `${count} ${stateLabel(state).toLowerCase()}`);
    const age = queue.isOld ? `gangs as of ${formatMoment(queue.at)}` : "";
    return [plural(cluster.nodes.size, "node"), plural(cluster.pods.size, "pod"), states.join(", "), age].filter(Boolean).join(" · ");
  }

  #drawOverview(matches) {
    const { cluster, queue, theme: { name: theme } } = this;
    const all = cluster.waiting();
    const waiting = all.filter((one) => matches(one.key) || matches(`${one.namespace}/${one.title}`));
    const decisions = decisionRows(cluster, matches, theme);
    this.utilisationUpdates.request();
    this.shown.waiting.show(waitingRows(cluster, waiting, { queue, theme }));
    this.shown.decisions.show(decisions);
    this.firstSteps.show(cluster, this.complete && !this.denied.size && !cluster.groups.size && !cluster.pods.size);
    setText($("waiting-title"), waiting.length > MAX_ROWS ? `Waiting: first ${MAX_ROWS} of ${waiting.length}` : `Waiting: ${waiting.length}`);
    const noGang = this.complete && (hiddenText(this.denied, ["pods", "groups"], "waiting gangs") || "No gang waits.");
    const noDecision = this.complete && (hiddenText(this.denied, ["groups", "events"], "decisions") || "No decision yet.");
    setText($("waiting-empty"), waiting.length || !noGang ? "" : all.length ? "No waiting gang matches the search." : noGang);
    setText($("decisions-empty"), decisions.length || !noDecision ? "" : noDecision);
  }
}

new Page();
