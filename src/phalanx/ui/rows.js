/* Converts API objects to the rows that the page keeps: only the fields that it shows, to save memory. */

import { parseResources } from "./quantity.js";

export const keyOf = (namespace, name) => `${namespace}/${name}`;

const TERMINAL_PHASES = new Set(["Succeeded", "Failed"]);
/** Annotation of a group whose Job has ended: how. */
const FINISHED = "phalanx.dev/finished";
const CONDITIONS = ["PodGroupScheduled", "PodGroupInitiallyScheduled"];

export function node({ metadata, spec, status }) {
  const ready = condition(status, "Ready");
  return {
    name: metadata.name,
    labels: metadata.labels ?? {},
    allocatable: parseResources(status?.allocatable),
    ready: ready?.status === "True",
    closed: Boolean(spec?.unschedulable),
    taints: (spec?.taints ?? []).map((one) => `${one.key}:${one.effect}`),
    created: metadata.creationTimestamp,
    notReady: ready?.status === "True" ? "" : ready?.message ?? "its kubelet has not reported",
  };
}

export function pod({ metadata, spec, status }) {
  const { namespace, name } = metadata;
  const group = spec.schedulingGroup?.podGroupName;
  const phase = status?.phase ?? "Pending";
  const scheduled = condition(status, "PodScheduled");
  const ends = (status?.containerStatuses ?? []).map((one) => one.state?.terminated).filter(Boolean);
  return {
    key: keyOf(namespace, name), namespace, name, phase,
    group: group ? keyOf(namespace, group) : "",
    node: spec.nodeName ?? "",
    nominated: status?.nominatedNodeName ?? "",
    terminating: Boolean(metadata.deletionTimestamp),
    ended: TERMINAL_PHASES.has(phase),
    requests: podRequests(spec),
    why: spec.nodeName ? "" : scheduled?.message ?? "",
    created: metadata.creationTimestamp,
    scheduled: scheduled?.status === "True" ? scheduled.lastTransitionTime : "",
    started: status?.startTime ?? "",
    finished: ends.map((one) => one.finishedAt).filter(Boolean).sort().at(-1) ?? "",
    failure: phase === "Failed" ? failureText(status, ends) : "",
    restarts: (status?.containerStatuses ?? []).reduce((sum, one) => sum + (one.restartCount ?? 0), 0),
    containers: spec.containers.map((one) => one.name),
  };
}

export function group({ metadata, spec, status }) {
  const { namespace, name } = metadata;
  const owners = metadata.ownerReferences ?? [];
  const controller = owners.find((one) => one.controller);
  const policy = spec.schedulingPolicy ?? {};
  return {
    key: keyOf(namespace, name), namespace, name, uid: metadata.uid ?? "",
    title: controller?.name ?? name,
    minCount: policy.gang?.minCount ?? 0,
    priority: spec.priority ?? 0,
    topology: (spec.schedulingConstraints?.topology ?? []).map((one) => one.key),
    parent: spec.parentCompositePodGroupName ?? "",
    workload: spec.workloadRef?.workloadName ?? owners.find((one) => one.kind === "Workload")?.name ?? "",
    owner: controller ? { kind: controller.kind, name: controller.name, version: controller.apiVersion } : null,
    created: metadata.creationTimestamp,
    finished: metadata.annotations?.[FINISHED] ?? "",
    conditions: (status?.conditions ?? []).map(({ type, status, reason, message, lastTransitionTime }) =>
      ({ type, status, reason, message: message ?? "", time: lastTransitionTime })),
  };
}

export function event({ metadata, involvedObject, reason, message, type, count, lastTimestamp, eventTime, series }) {
  return {
    key: metadata.uid, reason, message: message ?? "", good: type !== "Warning",
    kind: involvedObject.kind,
    about: keyOf(involvedObject.namespace ?? "", involvedObject.name),
    count: series?.count ?? count ?? 1,
    time: series?.lastObservedTime ?? lastTimestamp ?? eventTime ?? metadata.creationTimestamp,
  };
}

/** Returns the condition of a group about its placement. */
export function placementCondition(group) {
  for (const type of CONDITIONS) {
    const found = group.conditions.find((one) => one.type === type);
    if (found) return found;
  }
  return { status: "Unknown", reason: "New", message: "the scheduler has not tried to place it yet", time: group.created };
}

/** Says why a pod failed: its own reason, or how its containers ended. */
function failureText(status, ends) {
  const failed = ends.filter((one) => one.exitCode);
  const exits = failed.map((one) => `${one.reason ?? "Error"}, exit code ${one.exitCode}`);
  return [status.reason, status.message, ...exits].filter(Boolean).join(": ") || "Failed";
}

function condition(status, type) {
  return (status?.conditions ?? []).find((one) => one.type === type);
}

/** Returns the requests of a pod as the scheduler counts them: the sum of all containers, or an init container if larger. */
function podRequests(spec) {
  const total = {};
  for (const one of spec.containers) add(total, one.resources?.requests);
  for (const one of spec.initContainers ?? []) {
    if (one.restartPolicy === "Always") add(total, one.resources?.requests);
    else raiseTo(total, one.resources?.requests);
  }
  add(total, spec.overhead);
  return total;
}

function add(total, table) {
  for (const [name, value] of Object.entries(parseResources(table))) total[name] = (total[name] ?? 0) + value;
}

function raiseTo(total, table) {
  for (const [name, value] of Object.entries(parseResources(table))) total[name] = Math.max(total[name] ?? 0, value);
}
