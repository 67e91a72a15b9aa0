/* Addresses, states, the timeline of a gang, the forecast and the plots, from plain data. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { drawBlock } from "../../src/phalanx/ui/blocks.js";
import { causeText, forecastSummary, horizonOf, secondsToStart, startSentence, waitingInOrder } from "../../src/phalanx/ui/forecast.js";
import { formatDuration } from "../../src/phalanx/ui/format.js";
import { deriveState, gangDetail } from "../../src/phalanx/ui/gang_detail.js";
import { gangEvents, gangTimeline } from "../../src/phalanx/ui/gang_timeline.js";
import { nodeDetail, ownerDetail, podDetail } from "../../src/phalanx/ui/object_detail.js";
import { legendRows } from "../../src/phalanx/ui/legend.js";
import { LogView, plainText } from "../../src/phalanx/ui/log.js";
import { outlines } from "../../src/phalanx/ui/plot.js";
import { Queue } from "../../src/phalanx/ui/queue.js";
import { rightsText } from "../../src/phalanx/ui/rights.js";
import { hrefOf, hrefOfObject, hrefOfView, OVERVIEW, parseRoute } from "../../src/phalanx/ui/route.js";
import { countStates, STATES } from "../../src/phalanx/ui/states.js";
import { Table } from "../../src/phalanx/ui/table.js";
import { currentUse, shownResources, Utilisation } from "../../src/phalanx/ui/utilisation.js";
import { waitingRows } from "../../src/phalanx/ui/waiting.js";
import { open } from "./dom.mjs";
import { clusterOf, event, group, node, pod } from "./objects.mjs";

const NO_QUEUE = { find: () => undefined };
const queueOf = (...items) => ({ items, find: (namespace, name) => items.find((one) => one.namespace === namespace && one.name === name) });
const blockOf = (model, title) => model.blocks.find((one) => one.title?.startsWith(title));
const at = (seconds) => new Date(1_800_000_000_000 + seconds * 1000).toISOString().replace(".000Z", "Z");

test("addresses name views and objects, and return to the same", () => {
  assert.deepEqual(parseRoute(hrefOf("gang", "default/train-1")), { view: "detail", kind: "gang", key: "default/train-1", query: {} });
  assert.deepEqual(parseRoute("#/node/node-1"), { view: "detail", kind: "node", key: "node-1", query: {} });
  assert.deepEqual(parseRoute(hrefOfView("gangs", { state: "waiting,never", ns: "a", sort: "" })).query, { state: "waiting,never", ns: "a" });
  assert.equal(hrefOfObject("LeaderWorkerSet", "default", "llm"), "#/lws/default/llm");
  assert.equal(hrefOfObject("Deployment", "default", "x"), "");
  for (const hash of ["", "#/", "#/unknown", "#/gang/only", "#/gang/a/b/c", "#/node/", "#/gang/%E0%A4%A/x", "#/constructor/a/b"]) assert.equal(parseRoute(hash), OVERVIEW, hash);
});

test("samples of before a restart are dropped if the resources are in another order", async () => {
  const answers = [{ resources: ["cpu", "a/x"], points: [[1, 1, 2, 3, 4]] }, { resources: ["cpu", "a/x", "b/y"], points: [[2, 1, 2, 3, 4, 5, 6]] },
    { resources: ["cpu", "b/y"], points: [[3, 1, 2, 5, 6]] }];
  const counts = [];
  const stopper = new AbortController();
  const history = new Utilisation({ get: async () => answers.shift() }, () => counts.push(history.points.length), async () => answers.length || stopper.abort());
  await history.run(stopper.signal);
  assert.deepEqual(counts, [1, 2, 1]);
});

test("only states that need a person are red", () => {
  assert.deepEqual(Object.keys(STATES).filter((state) => STATES[state].tone === "bad"), ["never", "failed"]);
  assert.deepEqual(countStates([{ state: "failed" }, { state: "running" }, { state: "failed" }]), [["running", 1], ["failed", 2]]);
});

test("durations are short", () => {
  assert.deepEqual([0, 119, 125, 3600, 4 * 3600 + 60, 25 * 3600, 30 * 86400].map(formatDuration), ["0s", "119s", "2m5s", "60m", "4h1m", "1d1h", "30d"]);
});

function gangOf({ placed = 2, members = 2, minCount = 2, conditions = [], finished = "", phase = "Running" }) {
  const pods = Array.from({ length: members }, (_, index) => {
    const made = pod(`train-${index}-abcde`, { group: "train", node: index < placed ? `n${index}` : "", phase: index < placed ? phase : "Pending" });
    made.metadata.creationTimestamp = at(5 + index);
    made.status.startTime = index < placed ? at(30) : undefined;
    made.status.conditions = index < placed ? [{ type: "PodScheduled", status: "True", lastTransitionTime: at(20) }] : [];
    return made;
  });
  const made = group("train", { minCount });
  made.metadata.ownerReferences = [{ kind: "Job", name: "train", apiVersion: "batch/v1", controller: true }];
  made.metadata.annotations = finished ? { "phalanx.dev/finished": finished } : {};
  made.status.conditions = conditions;
  return clusterOf({ nodes: [node("n0"), node("n1")], pods, groups: [made] });
}

const timelineOf = (cluster, owner) => {
  const found = cluster.groups.get("default/train");
  const members = cluster.members(found.key);
  return gangTimeline(found, members, gangEvents(cluster, found, members), owner);
};

test("the timeline of a running gang has all its steps in order", () => {
  const steps = timelineOf(gangOf({ conditions: [{ type: "PodGroupInitiallyScheduled", status: "True", reason: "x", lastTransitionTime: at(19) }] }));
  assert.deepEqual(steps.map((one) => one.title), ["Created", "Complete", "Decided", "Bound", "Running"]);
  assert.deepEqual(steps.map((one) => one.after), ["", "+6s", "+13s", "+1s", "+10s"]);
  assert.equal(steps[3].text, "2 members on 2 nodes");
});

test("the timeline says what is missing, and shows attempts with their reasons", () => {
  const cluster = gangOf({ placed: 0, members: 1, conditions: [{ type: "Preempted", status: "True", reason: "x", message: "Preempted by a", lastTransitionTime: at(9) }] });
  const sink = cluster.sinks().events;
  for (const [seconds, uid] of [[7, "a"], [8, "b"]]) sink.apply("ADDED", event("train-0-abcde", "FailedScheduling", "0/2 nodes", seconds, uid));
  const steps = timelineOf(cluster);
  assert.deepEqual(steps.map(({ title, time }) => (time ? title : `(${title})`)), ["Created", "Attempt failed", "Preempted", "(Complete)", "(Decided)", "(Bound)", "(Running)"]);
  assert.equal(steps[1].text, "0/2 nodes (2 times)");
  assert.equal(steps[3].text, "waits for 1 more member");
});

test("the life of a gang begins again after a preemption", () => {
  const decided = { type: "PodGroupInitiallyScheduled", status: "True", reason: "x", lastTransitionTime: at(1) };
  const titlesOf = (options) => {
    const cluster = gangOf({ conditions: [decided], ...options });
    cluster.sinks().events.apply("ADDED", event("train-0-gone1", "Preempted", "Preempted by a", 4));
    return timelineOf(cluster).map(({ title, time }) => (time ? title : `(${title})`));
  };
  assert.deepEqual(titlesOf({}), ["Created", "Decided", "Preempted", "Complete again", "Decided again", "Bound again", "Running again"]);
  assert.deepEqual(titlesOf({ placed: 0 }), ["Created", "Decided", "Preempted", "Complete again", "(Decided again)", "(Bound again)", "(Running again)"]);
});

test("the timeline shows a refusal once", () => {
  const refusal = "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining";
  const cluster = gangOf({ placed: 0, conditions: [{ type: "PodGroupScheduled", status: "False", reason: "Unschedulable", message: refusal, lastTransitionTime: at(9) }] });
  const refusals = () => timelineOf(cluster).filter((one) => one.time && one.tone === "wait").map((one) => one.title);
  assert.deepEqual(refusals(), ["Refused"]);
  cluster.sinks().events.apply("ADDED", event("train-0-abcde", "FailedScheduling", refusal, 9));
  assert.deepEqual(refusals(), ["Attempt failed"]);
});

test("one preemption of several members is not called several preemptions", () => {
  const cluster = gangOf({ placed: 0 });
  const refuse = (name, uid, seconds) => cluster.sinks().events.apply("ADDED", event(name, "FailedScheduling", "0/2 nodes", seconds, uid));
  for (const name of ["train-0-gone1", "train-1-gone2"]) cluster.sinks().events.apply("ADDED", event(name, "Preempted", "Preempted by a", 4));
  refuse("train-0-abcde", "a", 7);
  refuse("train-0-abcde", "b", 8);
  refuse("train-1-abcde", "c", 8);
  const texts = timelineOf(cluster).filter(({ tone }) => tone === "wait").map(({ text }) => text);
  assert.deepEqual(texts, ["Preempted by a (2 members)", "0/2 nodes (2 members, 2 times)"]);
});

test("the timeline names a preemptor once, by its title", () => {
  const uid = "2922ea54-2435-41bd-9cac-3e6b74406bdf";
  const conditions = [{ type: "Preempted", status: "True", reason: "x", message: "Preempted by PodGroup default/other-pg", lastTransitionTime: at(9) },
    { type: "Degraded", status: "True", reason: "x", message: "1 of 2 members", lastTransitionTime: at(10) }];
  const cluster = gangOf({ placed: 0, conditions });
  const other = group("other-pg");
  Object.assign(other.metadata, { uid, ownerReferences: [{ kind: "Job", name: "other", controller: true }] });
  cluster.sinks().groups.apply("ADDED", other);
  for (const one of ["a", "b"]) cluster.sinks().events.apply("ADDED", event("train-0-gone1", "Preempted", `Preempted by podgroup ${uid} on node cluster`, 9, one));
  const steps = timelineOf(cluster).filter(({ title }) => ["Preempted", "Degraded"].includes(title));
  assert.deepEqual(steps.map(({ title, text, tone }) => [title, text, tone]),
    [["Preempted", "Preempted by default/other (2 times)", "wait"], ["Degraded", "1 of 2 members", "wait"]]);
});

test("a table draws no column without a value, and labels its cells", () => {
  open("http://unused", new URL("../../src/phalanx/ui/", import.meta.url));
  const drawn = drawBlock({ type: "table", title: "Pods", columns: ["Pod", "Node", "Restarts"], rows: [["a", "n1", ""], ["b", null, ""]] });
  assert.deepEqual(drawn.querySelectorAll("th").map((one) => one.textContent), ["Pod", "Node"]);
  assert.deepEqual(drawn.querySelectorAll("td").map((one) => [one.attributes["data-label"], one.textContent]),
    [["Pod", "a"], ["Node", "n1"], ["Pod", "b"], ["Node", ""]]);
});

test("the timeline ends with done or failed", () => {
  const done = timelineOf(gangOf({ finished: "Complete", phase: "Succeeded" }), { status: { completionTime: at(60) } }).at(-1);
  assert.deepEqual([done.title, done.tone, done.time], ["Done", "good", at(60)]);
  const failed = timelineOf(gangOf({ finished: "Failed: BackoffLimitExceeded", phase: "Failed" })).at(-1);
  assert.deepEqual([failed.title, failed.tone], ["Failed", "bad"]);
  assert.match(failed.text, /BackoffLimitExceeded; 2 pods failed/);
});

test("the page of a gang shows its entry of the queue", () => {
  const entry = { namespace: "default", name: "train", state: "reserved", position: 3, expectedStart: at(600), waitsFor: ["job/a"], message: "no room", scheduler: "s" };
  const model = gangDetail(gangOf({ placed: 0 }), queueOf(entry), "default/train");
  assert.equal(model.title, "Gang default/train");
  assert.deepEqual(model.state, { label: "Reserved", tone: "plan" });
  assert.match(blockOf(model, "Why it waits").lines[0], /^Nodes are reserved\. Expected to start .*, when job\/a ends\.$/);
  assert.equal(blockOf(model, "Why it waits").lines[1], "no room");
  const facts = Object.fromEntries(blockOf(model, "About").rows);
  assert.deepEqual([facts.Position, facts["Waits for"], facts.Job.href], [3, "job/a", "#/job/default/train"]);
  assert.equal(blockOf(model, "Pods").rows.length, 2);
});

test("a gang that does not exist is said to be missing", () => {
  assert.match(gangDetail(gangOf({}), NO_QUEUE, "default/other").blocks[0].lines[0], /There is no gang default\/other/);
  assert.match(podDetail(gangOf({}), "default/x").blocks[0].lines[0], /There is no Pod default\/x/);
  assert.match(ownerDetail(gangOf({}), NO_QUEUE, "jobset", "default/x", { about: { isLoaded: true } }).blocks[0].lines[0], /There is no JobSet/);
});

test("a gang is found by the name of its owner, the newest group first", () => {
  const owned = (name, age) => {
    const found = group(name, { age });
    found.metadata.ownerReferences = [{ apiVersion: "batch/v1", kind: "Job", name: "train", controller: true }];
    return found;
  };
  const cluster = clusterOf({ groups: [owned("train-a", 0), owned("train-b", 60), owned("train-c", 30), group("other")] });
  assert.equal(cluster.findGang("default/train"), "default/train-b");
  assert.equal(cluster.findGang("default/train-a"), "default/train-a");
  assert.equal(cluster.findGang("team/train"), "team/train");
  assert.equal(gangDetail(cluster, NO_QUEUE, "default/train").title, "Gang default/train");
});

test("states are derived from objects until the queue is known", () => {
  const stateOf = (options) => { const cluster = gangOf(options); return deriveState(cluster.groups.get("default/train"), cluster.members("default/train")); };
  assert.deepEqual([{}, { placed: 0 }, { placed: 0, members: 1 }, { finished: "Complete" }, { phase: "Failed" }].map(stateOf), ["running", "waiting", "held", "completed", "failed"]);
});

test("the page of a node shows resources, devices and pods", () => {
  const slices = [{ spec: { driver: "d", pool: { name: "p" }, devices: [{ name: "g0", attributes: { model: { string: "x" } } }, { name: "g1" }] } }];
  const claims = [{ metadata: { namespace: "default", name: "c" }, status: { reservedFor: [{ resource: "pods", name: "train-0-abcde" }], allocation: { devices: { results: [{ driver: "d", pool: "p", device: "g0" }] } } } }];
  const model = nodeDetail(gangOf({}), "n0", { about: { slices, claims } });
  const devices = blockOf(model, "Devices (1 of 2 in use)");
  assert.deepEqual(devices.rows.map(([name, , state, user]) => [name, state.text, user.text ?? user]), [["g0", "In use", "train-0-abcde"], ["g1", "Free", ""]]);
  assert.deepEqual(blockOf(model, "Resources").rows.find(([name]) => name === "gpu").slice(2), ["1", "7", "8"]);
  assert.equal(blockOf(model, "Pods (1)").rows[0][3].href, "#/gang/default/train");
});

test("the forecast follows the queue and says what is next", () => {
  const now = Date.parse(at(0));
  const items = [
    { name: "c", argument: "job/c", state: "never", position: 3 }, { name: "a", argument: "job/a", state: "reserved", position: 1, expectedStart: at(900) },
    { name: "r", argument: "job/r", state: "running" }, { name: "b", argument: "job/b", state: "waiting", position: 2, expectedStart: at(300) },
  ];
  const waiting = waitingInOrder(items);
  assert.deepEqual(waiting.map((one) => one.name), ["a", "b", "c"]);
  assert.equal(horizonOf(waiting.map((one) => secondsToStart(one, now))), 1800);
  assert.equal(forecastSummary(waiting, now), "3 gangs wait, 2 with an expected start, 1 cannot fit on these nodes. Next: job/b in 5m.");
  assert.equal(forecastSummary([], now), "Nothing waits.");
});

test("the forecast says for what a gang waits", () => {
  const reserved = { conditions: [{ type: "Reserved", status: "True", message: "8 nodes reserved; expected start 2027-01-15T08:00:00Z, when job/a and job/b end" }] };
  assert.equal(causeText({ state: "waiting", waitsFor: ["job/a"], message: "m" }), "when job/a ends");
  assert.equal(causeText({ state: "reserved", waitsFor: [], message: "m" }, reserved), "when job/a and job/b end");
  assert.equal(causeText({ state: "waiting", waitsFor: [], message: "m" }, reserved), "m");
  assert.equal(causeText({ state: "never", waitsFor: ["job/a"] }), "does not fit even if nothing else ran");
});

test("a waiting gang says when it is expected to start", () => {
  const now = Date.parse(at(0));
  assert.equal(startSentence({ state: "reserved", expectedStart: at(600), waitsFor: ["job/a"] }, null, now), "Nodes are reserved. Expected to start in 10m, when job/a ends.");
  assert.equal(startSentence({ state: "waiting", expectedStart: at(0) }, null, now), "Expected to start now.");
  assert.equal(startSentence({ state: "waiting" }, null, now), "");
  assert.equal(startSentence(undefined, undefined, now), "");
});

test("the list of waiting gangs shows reserved nodes and gangs that never fit", () => {
  open("http://unused", new URL("../../src/phalanx/ui/", import.meta.url));
  const cluster = gangOf({ placed: 0 });
  const textOf = (state) => {
    const queue = queueOf({ namespace: "default", name: "train", state });
    return waitingRows(cluster, cluster.waiting(), { queue, theme: "light" })[0].draw().map((one) => one.textContent ?? one).join("");
  };
  assert.match(textOf("reserved"), /Reserved.*Nodes are reserved\./);
  assert.match(textOf("never"), /Never fits/);
  assert.doesNotMatch(textOf("waiting"), /Waiting|reserved/);
});

test("the legend names the gangs on the map, with their pods there", () => {
  const pods = [pod("a-0", { group: "a", node: "n0" }), pod("a-1", { group: "a" }), ...[0, 1].map((at) => pod(`b-${at}`, { group: "b", node: "n0" })),
    pod("c-0", { group: "c" }), pod("d-0", { group: "d", node: "n0", phase: "Succeeded" })];
  const cluster = clusterOf({ nodes: [node("n0")], pods, groups: ["a", "b", "c", "d"].map((name) => group(name)) });
  assert.deepEqual(legendRows(cluster, () => true, "light").map(({ key, stamp }) => [key, stamp.split("|")[0]]), [["default/b", "2"], ["default/a", "1"]]);
});

test("a log is shown as a terminal would, without colours", () => {
  assert.equal(plainText("\u001b[1;31mred\u001b[0m\r\n\u001b]0;title\u0007plain\n"), "red\nplain\n");
  assert.equal(plainText("step 1\r 50 %\r100 %\nnext\r"), "100 %\nnext\r");
  assert.equal(plainText("a\r\rb\u001b(B\u001b7\n"), "b\n");
  assert.equal(plainText("a <b>[0m</b>\n"), "a <b>[0m</b>\n");
});

test("a report that is late is dated", async () => {
  const [seen, stopper, times] = [[], new AbortController(), [10, 20, 45, 46]];
  const api = { request: async () => ({ status: 200, json: async () => ({ at: at(0), items: [] }) }) };
  const queue = new Queue(api, () => seen.push(queue.isOld), {
    pause: async () => times.length || stopper.abort(), now: () => Date.parse(at(times.shift())),
  });
  await queue.run(stopper.signal);
  assert.deepEqual(seen, [false, true]);
});

test("a plot has a gap where samples are missing", () => {
  const runs = outlines([[0, 0], [60, 0.5], [1000, 1], [2000, 1]], 0, 1200);
  assert.deepEqual(runs.map((run) => run.length), [2, 1]);
  assert.deepEqual(runs[0], [[0, 100], [30, 50]]);
});

test("utilisation sums requests of pods on nodes, accelerators first", () => {
  const sums = currentUse(gangOf({ placed: 1 }));
  assert.deepEqual(sums.get("gpu"), { used: 1, total: 16 });
  assert.deepEqual(shownResources(["memory", "pods", "cpu", "example.com/nic", "nvidia.com/gpu", "devices"]), ["nvidia.com/gpu", "cpu", "memory", "devices"]);
});

test("missing rights are named with what to do", () => {
  assert.equal(rightsText([], ""), "");
  assert.match(rightsText(["events", "pods", "groups"], ""), /You may not list pods, PodGroups and events in all namespaces; name a namespace/);
  assert.match(rightsText(["nodes"], "team"), /^Only the namespace team is shown. You may not list nodes: the map/);
});

test("a view that replaces another one leaves nothing of it", async () => {
  const $ = open("http://unused", new URL("../../src/phalanx/ui/", import.meta.url));
  const paths = [];
  const api = { request: async (path) => { paths.push(path); return { text: async () => "line" }; } };
  const parts = { section: $("log"), text: $("log-text"), containers: $("log-containers"), note: $("log-note") };
  const before = new LogView(parts);
  before.show(api, { key: "default/a", containers: ["main", "side"] });
  before.close();
  const after = new LogView(parts);
  after.show(api, { key: "default/b", containers: ["main", "side"] });
  parts.containers.value = "side";
  parts.containers.fire("change");
  parts.containers.onchange?.();
  after.close();
  assert.deepEqual(paths.map((path) => path.split("?")[0].split("/").at(-2) + path.split("container=")[1].split("&")[0]), ["amain", "bmain", "bside"]);

  const count = () => $("gang-table").parentElement.querySelectorAll("button").length;
  const begin = count();
  new Table($("gang-table"), [], { sort: "x", sorted() {} }).close();
  assert.equal(count(), begin);
  assert.equal($("gang-table").childNodes.length, 0);
});
