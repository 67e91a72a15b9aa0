import assert from "node:assert/strict";
import test from "node:test";

import { Cluster } from "../../src/phalanx/ui/cluster.js";
import { decisions } from "../../src/phalanx/ui/decisions.js";
import { strips } from "../../src/phalanx/ui/map.js";
import { capacitySentences, countFits, free, FreeCapacity, gangCapacity, shortageSentence } from "../../src/phalanx/ui/capacity.js";
import { whyCommand } from "../../src/phalanx/ui/waiting.js";
import { clusterOf, event, group, node, pod } from "./objects.mjs";

test("a pod is indexed by its node and group only", () => {
  const cluster = clusterOf({ nodes: [node("n1"), node("n2")], pods: [pod("a", { group: "g" })] });
  const { pods } = cluster.sinks();
  assert.equal(cluster.running("n1").length, 0);
  pods.apply("MODIFIED", pod("a", { group: "g", node: "n1" }));
  assert.deepEqual(cluster.running("n1").map((one) => one.key), ["default/a"]);
  assert.equal(cluster.members("default/g").length, 1);
  pods.apply("DELETED", pod("a", { group: "g", node: "n1" }));
  assert.deepEqual([cluster.running("n1"), cluster.members("default/g"), cluster.onNode.size, cluster.inGroup.size], [[], [], 0, 0]);
});

test("a new list replaces the old one", () => {
  const cluster = clusterOf({ nodes: [node("n1")], pods: [pod("a", { node: "n1" }), pod("b", { node: "n1" })] });
  cluster.sinks().pods.replace([pod("b", { node: "n1" }), pod("c", { node: "n1" })]);
  assert.deepEqual(cluster.running("n1").map((one) => one.name), ["b", "c"]);
});

test("a pod that has ended uses no resources", () => {
  const cluster = clusterOf({ nodes: [node("n1", { gpu: 4 })], pods: [pod("a", { node: "n1", gpu: 4, phase: "Succeeded" })] });
  assert.equal(free(cluster, cluster.nodes.get("n1")).gpu, 4);
});

test("waiting gangs are ordered by priority and age", () => {
  const groups = [group("old", { age: 1 }), group("new", { age: 2 }), group("great", { age: 3, priority: 10 }), group("placed", { age: 0 })];
  const pods = [...groups.slice(0, 3).map((one) => pod(one.metadata.name, { group: one.metadata.name })), pod("p", { group: "placed", node: "n1" })];
  const cluster = clusterOf({ groups, pods });
  assert.deepEqual(cluster.waiting().map((one) => one.name), ["great", "old", "new"]);
});

test("the scarcest resource limits how many pods fit", () => {
  assert.deepEqual(countFits({ cpu: 2, gpu: 1 }, { cpu: 8, gpu: 3, pods: 110 }), { fit: 3, lacking: [] });
  assert.deepEqual(countFits({ cpu: 0.1 }, { cpu: 0.3, pods: 110 }), { fit: 3, lacking: [] });
  assert.deepEqual(countFits({ gpu: 1 }, { cpu: 8, pods: 110 }), { fit: 0, lacking: ["gpu"] });
  assert.deepEqual(countFits({ cpu: 1, gpu: 1 }, { cpu: 0.5, pods: 0 }), { fit: 0, lacking: ["pods", "cpu", "gpu"] });
  assert.equal(countFits({ cpu: 1 }, { cpu: 8, pods: 2 }).fit, 2);
});

test("a node that lacks two resources counts for both", () => {
  const pods = [pod("x", { node: "a", gpu: 8 }), pod("y", { node: "b", gpu: 8 }), pod("p", { group: "g", gpu: 1 })];
  pods[1].spec.containers[0].resources.requests.cpu = "8";
  const cluster = clusterOf({ nodes: [node("a"), node("b")], pods, groups: [group("g")] });
  const wanted = cluster.groups.get("default/g");
  assert.equal(shortageSentence(gangCapacity(cluster, wanted, new FreeCapacity(cluster)), wanted), "0 of 1 member fits: every node lacks gpu.");
});

test("a gang that never fits is compared with empty nodes", () => {
  const pods = [pod("x", { node: "a", gpu: 8 }), ...[0, 1, 2].map((at) => pod(`p${at}`, { group: "g", gpu: 8 }))];
  const cluster = clusterOf({ nodes: [node("a"), node("b")], pods, groups: [group("g", { minCount: 3 })] });
  const wanted = cluster.groups.get("default/g");
  const found = gangCapacity(cluster, wanted, new FreeCapacity(cluster, { isEmpty: true }));
  assert.equal(shortageSentence(found, wanted), "2 of 3 members fit even if nothing else ran.");
  assert.equal(capacitySentences(found, wanted).at(-1), "Add capacity for 1 more member.");
});

test("a waiting gang shows how many members are missing and the domain with the most free resources", () => {
  const nodes = [node("a", { gpu: 4, rack: "r1" }), node("b", { gpu: 4, rack: "r1" }), node("c", { gpu: 4, rack: "r2" })];
  const pods = [0, 1, 2].map((at) => pod(`p${at}`, { group: "g", gpu: 4 }));
  const cluster = clusterOf({ nodes, pods: [...pods, pod("x", { node: "a", gpu: 1 })], groups: [group("g", { minCount: 3, topology: ["rack"] })] });
  const wanted = cluster.groups.get("default/g");
  const found = gangCapacity(cluster, wanted, new FreeCapacity(cluster));
  assert.deepEqual([found.all, found.inBest, found.needed, found.limit, found.full], [2, 1, 3, "gpu", 1]);
  assert.match(shortageSentence(found, wanted), /^1 of 3 members fit in r[12], which has the most room: 1 node without enough gpu\.$/);
  assert.deepEqual(capacitySentences(found, wanted), ["0 placed, 3 waiting, at least 3 at once.", "Free or add capacity for 2 more members."]);
});

test("what a waiting gang lacks is said in one sentence", () => {
  const waiting = { placed: 0, waiting: 3, needed: 3, all: 0, limit: "gpu", best: "", inBest: 0, full: 2, nodes: 2 };
  const anywhere = { topology: [], minCount: 3 };
  assert.equal(shortageSentence(waiting, anywhere), "0 of 3 members fit: every node lacks gpu.");
  assert.equal(shortageSentence({ ...waiting, placed: 2, needed: 1, waiting: 1 }, anywhere), "0 of 1 more member fits: every node lacks gpu.");
  assert.equal(shortageSentence(waiting, { topology: ["rack"] }), "0 of 3 members fit in any rack: every node lacks gpu.");
  assert.equal(shortageSentence({ ...waiting, all: 3 }, anywhere), "");
  assert.deepEqual(capacitySentences({ ...waiting, all: 3 }, anywhere).at(-1), "Resources are free for 3 more; 3 needed.");
});

test("equal events of many members are one decision", () => {
  const pods = [0, 1, 2].map((at) => pod(`p${at}`, { group: "g", node: "n1" }));
  const cluster = clusterOf({ pods, groups: [group("g", { condition: ["True", "MinCountSatisfied"] })] });
  const { events } = cluster.sinks();
  for (const one of pods) events.apply("ADDED", event(one.metadata.name, "Scheduled", `assigned ${one.metadata.name}`, 5));
  events.apply("ADDED", event("p9", "Preempted", "Preempted by pod x", 9));
  events.apply("ADDED", event("p9", "Killing", "no decision", 9));
  const found = decisions(cluster, 10);
  assert.deepEqual(found.map((one) => [one.reason, one.title, one.pods]),
    [["Preempted", "default/p9", 1], ["Scheduled", "default/g", 3], ["MinCountSatisfied", "default/g", 0]]);
});

test("a refusal is one decision, of the event and not of the condition that repeats it", () => {
  const refusal = "minCount (3) cannot be satisfied: 0 scheduled, 2 remaining";
  const refused = () => clusterOf({ pods: [pod("p0", { group: "g" })], groups: [group("g", { minCount: 3, condition: ["False", "Unschedulable", refusal] })] });
  const reasons = (cluster) => decisions(cluster, 10).map((one) => one.reason);
  assert.deepEqual(reasons(refused()), ["Unschedulable"]);
  const repeated = refused();
  repeated.sinks().events.apply("ADDED", event("p0", "FailedScheduling", `pod group is unschedulable, ${refusal}`, 5));
  assert.deepEqual(reasons(repeated), ["FailedScheduling"]);
  const another = refused();
  another.sinks().events.apply("ADDED", event("p0", "FailedScheduling", "0/2 nodes are available", 5));
  assert.deepEqual(reasons(another), ["FailedScheduling", "Unschedulable"]);
});

test("old events are dropped", () => {
  const cluster = new Cluster();
  const { events } = cluster.sinks();
  for (let at = 0; at < 6000; at++) events.apply("ADDED", event(`p${at}`, "Scheduled", "", 1, `uid-${at}`));
  assert.equal(cluster.events.size, 5000);
  assert.ok(cluster.events.has("uid-5999") && !cluster.events.has("uid-0"));
});

test("a pod is as wide as its largest share, and all pods together are no wider than the node", () => {
  const cluster = clusterOf({ nodes: [node("n1", { gpu: 4 })], pods: [0, 1, 2, 3, 4].map((at) => pod(`p${at}`, { node: "n1", gpu: 1 })) });
  const [full, half] = [cluster.running("n1"), cluster.running("n1").slice(0, 2)].map((pods) => strips(pods, cluster.nodes.get("n1"), 40));
  assert.deepEqual(half.map((one) => [one.from, one.width]), [[0, 10], [10, 10]]);
  assert.ok(Math.abs(full.at(-1).from + full.at(-1).width - 40) < 1e-6);
});

test("the why command names the owner of the gang", () => {
  const made = { name: "train-1-2", namespace: "lab", owner: { kind: "Job", name: "train" } };
  assert.equal(whyCommand(made), "phalanx why job/train -n lab");
  assert.equal(whyCommand({ ...made, owner: { kind: "Workload", name: "w" } }), "phalanx why podgroup/train-1-2 -n lab");
  assert.equal(whyCommand({ ...made, owner: null }), "phalanx why podgroup/train-1-2 -n lab");
});
