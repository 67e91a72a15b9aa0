/* The pages of nodes, pods and owners (Jobs, JobSets, LeaderWorkerSets). Pure: from rows to blocks. */

import { free } from "./capacity.js";
import { formatMoment } from "./format.js";
import { gangDetail, groupCells, memberBlock, ownerLines, podState } from "./gang_detail.js";
import { formatAmount, formatResources } from "./quantity.js";
import { hrefOf, hrefOfObject } from "./route.js";

const order = new Intl.Collator("en", { numeric: true });

/** Returns the page of a node; `about` has its ResourceSlices and the ResourceClaims if they could be read. */
export function nodeDetail(cluster, name, { about = {} } = {}) {
  const node = cluster.nodes.get(name);
  if (!node) return missing("Node", name);
  const pods = cluster.running(name);
  const left = free(cluster, node);
  const resources = Object.entries(node.allocatable).map(([key, total]) => {
    const used = total - (left[key] ?? total);
    const percent = total ? Math.round((100 * used) / total) : 0;
    return [key, { text: `${percent} %`, share: percent }, formatAmount(key, used), formatAmount(key, left[key] ?? total), formatAmount(key, total)];
  });
  return {
    title: `Node ${name}`, state: nodeState(node),
    blocks: [
      ...(node.ready ? [] : [{ type: "text", tone: "bad", lines: [`The node is not ready: ${node.notReady}`] }]),
      { type: "table", title: "Resources", area: "main", columns: ["Resource", "Used", "Requested", "Free", "Allocatable"], rows: resources },
      ...deviceBlocks(about),
      {
        type: "table", title: `Pods (${pods.length})`, area: "wide", columns: ["Pod", "Namespace", "State", "Gang", "Requests"], empty: "No pod is on this node.",
        rows: pods.map((pod) => [{ text: pod.name, href: hrefOf("pod", pod.key) }, pod.namespace, podState(pod), pod.group ? { text: pod.group.split("/")[1], href: hrefOf("gang", pod.group) } : "", formatResources(pod.requests)]),
      },
      { type: "facts", title: "Labels", area: "side", rows: Object.entries(node.labels).sort(([a], [b]) => order.compare(a, b)) },
      { type: "facts", title: "About", area: "side", rows: [["Created", formatMoment(node.created)], ["Taints", node.taints.join(", ") || "none"], ["Cordoned", node.closed ? "yes: no new pods" : "no"]] },
    ],
  };
}

function nodeState(node) {
  if (!node.ready) return { tone: "bad", label: "Not ready" };
  return node.closed ? { tone: "wait", label: "Cordoned" } : { tone: "good", label: "Ready" };
}

/** Devices of a node, with the claim and the pods that have each. */
function deviceBlocks({ slices, claims }) {
  if (!slices?.length) return [];
  const holders = new Map();
  for (const { metadata, status } of claims ?? []) {
    const users = (status?.reservedFor ?? []).filter((one) => one.resource === "pods").map((one) => one.name);
    for (const { driver, pool, device } of status?.allocation?.devices?.results ?? []) {
      holders.set(`${driver}/${pool}/${device}`, { claim: `${metadata.namespace}/${metadata.name}`, namespace: metadata.namespace, users });
    }
  }
  const rows = slices.flatMap(({ spec }) => (spec.devices ?? []).map((device) => {
    const held = holders.get(`${spec.driver}/${spec.pool.name}/${device.name}`);
    const user = held?.users[0];
    return [device.name, spec.driver, held ? { tone: "good", text: "In use" } : { tone: "quiet", text: "Free" },
      user ? { text: user, href: hrefOf("pod", `${held.namespace}/${user}`) } : held?.claim ?? "", attributeText(device)];
  }));
  const used = rows.filter(([, , state]) => state.tone === "good").length;
  return [{ type: "table", title: `Devices (${used} of ${rows.length} in use)`, area: "wide", columns: ["Device", "Driver", "State", "Used by", "Attributes"], rows }];
}

function attributeText({ attributes = {}, capacity = {} }) {
  const values = Object.entries(attributes).map(([name, value]) => `${name}: ${Object.values(value)[0]}`);
  const amounts = Object.entries(capacity).map(([name, { value }]) => `${name}: ${value}`);
  return [...values, ...amounts].join(", ");
}

/** Returns the page of a pod; its log is drawn below. */
export function podDetail(cluster, key) {
  const pod = cluster.pods.get(key);
  if (!pod) return missing("Pod", key);
  const { tone, text } = podState(pod);
  return {
    title: `Pod ${key}`, state: { tone, label: text }, log: { key, containers: pod.containers },
    blocks: [
      ...(pod.failure || pod.why ? [{ type: "text", tone: pod.failure ? "bad" : "", lines: [pod.failure || pod.why] }] : []),
      {
        type: "facts", title: "About", area: "side", rows: [
          ["Gang", pod.group ? { text: pod.group.split("/")[1], href: hrefOf("gang", pod.group) } : "none"],
          ["Node", pod.node ? { text: pod.node, href: hrefOf("node", pod.node) } : pod.nominated ? `nominated ${pod.nominated}` : "none"],
          ["Requests", formatResources(pod.requests)], ["Containers", pod.containers.join(", ")], ["Restarts", pod.restarts],
        ],
      },
      {
        type: "timeline", title: "Timeline", area: "side", steps: [["Created", pod.created], ["Bound", pod.scheduled], ["Started", pod.started], [pod.phase === "Failed" ? "Failed" : "Ended", pod.finished]]
          .map(([title, time]) => ({ time, title, text: "", tone: !time ? "none" : title === "Failed" ? "bad" : "plan" }))
          .filter((one) => one.time || (one.title !== "Ended" && !pod.ended)),
      },
    ],
  };
}

const OWNER_KINDS = { job: "Job", jobset: "JobSet", lws: "LeaderWorkerSet" };

/** Returns the page of an owner: its status, and its gang or the tree of its gangs. */
export function ownerDetail(cluster, queue, kind, key, { about = {}, theme = "light" } = {}) {
  const [namespace, name] = key.split("/");
  const owner = about.owner;
  const groups = [...cluster.groups.values()].filter((one) => one.namespace === namespace && one.owner?.kind === OWNER_KINDS[kind] && one.owner.name === name);
  groups.sort((a, b) => order.compare(a.name, b.name));
  if (!groups.length && !owner) return about.isLoaded ? missing(OWNER_KINDS[kind], key) : { title: `${OWNER_KINDS[kind]} ${key}`, state: null, blocks: [] };
  if (groups.length === 1) {
    const gang = gangDetail(cluster, queue, groups[0].key, { about, theme });
    return { ...gang, title: `${OWNER_KINDS[kind]} ${key}` };
  }
  const members = groups.flatMap((one) => cluster.members(one.key));
  const { state } = groups.length ? gangDetail(cluster, queue, groups[0].parent ? `${namespace}/${groups[0].parent}` : groups[0].key) : { state: null };
  const failed = (owner?.status?.conditions ?? []).find((one) => ["Complete", "Completed", "Failed"].includes(one.type) && one.status === "True");
  const ended = failed && { label: failed.type === "Failed" ? "Failed" : "Done", tone: failed.type === "Failed" ? "bad" : "quiet" };
  return {
    title: `${OWNER_KINDS[kind]} ${key}`, state: ended ?? state,
    blocks: [
      ...(failed?.message ? [{ type: "text", tone: failed.type === "Failed" ? "bad" : "", lines: [failed.message] }] : []),
      { type: "facts", title: "About", area: "side", rows: [["Status", owner ? ownerLines(OWNER_KINDS[kind], owner).join("; ") : ""], ["Created", owner ? formatMoment(owner.metadata.creationTimestamp) : ""]] },
      { type: "tree", title: "Tree", area: "side", nodes: [{ cells: [`${OWNER_KINDS[kind]} ${name}`], children: branches(cluster, groups) }] },
      memberBlock(members),
    ],
  };
}

/** Groups below their composites. */
function branches(cluster, groups) {
  const byParent = Map.groupBy ? Map.groupBy(groups, (one) => one.parent) : groupBy(groups);
  return [...byParent].flatMap(([parent, found]) => {
    const leaves = found.map((one) => ({ cells: groupCells(cluster, one) }));
    return parent ? [{ cells: ["CompositePodGroup ", { text: parent, href: hrefOfObject("CompositePodGroup", found[0].namespace, parent) }], children: leaves }] : leaves;
  });
}

function groupBy(groups) {
  const found = new Map();
  for (const one of groups) found.set(one.parent, [...(found.get(one.parent) ?? []), one]);
  return found;
}

const missing = (kind, key) => ({ title: `${kind} ${key}`, state: null, blocks: [{ type: "text", lines: [`There is no ${kind} ${key} (any more), or you may not see it.`] }] });
