/* Minimal API objects for tests. */

import { Cluster } from "../../src/phalanx/ui/cluster.js";

const at = (seconds) => new Date(1_800_000_000_000 + seconds * 1000).toISOString().replace(".000Z", "Z");

export const node = (name, { gpu = 8, ...labels } = {}) => ({
  metadata: { name, labels }, spec: {},
  status: { allocatable: { cpu: "8", gpu: String(gpu), pods: "110" }, conditions: [{ type: "Ready", status: "True" }] },
});

export const pod = (name, { group, node = "", gpu = 1, phase = node ? "Running" : "Pending" } = {}) => ({
  metadata: { namespace: "default", name },
  spec: {
    nodeName: node || undefined, schedulingGroup: group && { podGroupName: group },
    containers: [{ name: "main", resources: { requests: { cpu: "500m", gpu: String(gpu) } } }],
  },
  status: { phase },
});

export const group = (name, { minCount = 1, topology = [], age = 0, priority = 0, condition } = {}) => ({
  metadata: { namespace: "default", name, creationTimestamp: at(age) },
  spec: { priority, schedulingPolicy: { gang: { minCount } }, schedulingConstraints: { topology: topology.map((key) => ({ key })) } },
  status: {
    conditions: condition && [{
      type: "PodGroupScheduled", status: condition[0], reason: condition[1], message: condition[2] ?? "", lastTransitionTime: at(age),
    }],
  },
});

export const event = (about, reason, message, seconds, uid = `${about}-${reason}`) => ({
  metadata: { uid }, involvedObject: { kind: "Pod", namespace: "default", name: about },
  reason, message, type: "Normal", count: 1, lastTimestamp: at(seconds),
});

export function clusterOf({ nodes = [], pods = [], groups = [] }) {
  const cluster = new Cluster();
  const sinks = cluster.sinks();
  sinks.nodes.replace(nodes);
  sinks.pods.replace(pods);
  sinks.groups.replace(groups);
  return cluster;
}
