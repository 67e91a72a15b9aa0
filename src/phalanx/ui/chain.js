/* The selected gang as a chain (its owner, Workload, PodGroups, pods, nodes), or the selected node with its pods. */

import { compare } from "./cluster.js";
import { formatTime, make, setText } from "./element.js";
import { free } from "./capacity.js";
import { formatResources } from "./quantity.js";
import { whyCommand } from "./waiting.js";

const SCHEDULING = "/apis/scheduling.k8s.io/v1beta1";
const MAX_TAGS = 120;
/** Owners that the page can request; of others it shows only the name. */
const OWNERS = {
  "batch/v1 Job": (namespace, name) => `/apis/batch/v1/namespaces/${namespace}/jobs/${name}`,
  "jobset.x-k8s.io/v1alpha2 JobSet": (namespace, name) => `/apis/jobset.x-k8s.io/v1alpha2/namespaces/${namespace}/jobsets/${name}`,
  "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet":
    (namespace, name) => `/apis/leaderworkerset.x-k8s.io/v1/namespaces/${namespace}/leaderworkersets/${name}`,
};

export class Chain {
  constructor({ section, title, body }, cluster, { theme, choose }) {
    Object.assign(this, { section, title, body, cluster, theme, choose });
    this.chosen = { kind: "", key: "" };
    this.about = {};
    this.stamp = "";
  }

  /** Shows another gang or node, or nothing; requests the Job and the Workload of a gang again. */
  async follow(api, kind, key) {
    if (key !== this.chosen.key) this.about = {};
    this.chosen = { kind, key };
    this.section.hidden = !kind;
    this.draw();
    if (kind === "gang") await this.#load(api, key);
  }

  /** Requests the Job and the Workload by name: they change too rarely to be watched. */
  async #load(api, key) {
    const group = this.cluster.groups.get(key);
    if (!group) return;
    const { namespace, owner, workload } = group;
    const job = owner && OWNERS[`${owner.version} ${owner.kind}`]?.(namespace, owner.name);
    const plan = workload && `${SCHEDULING}/namespaces/${namespace}/workloads/${workload}`;
    const found = await Promise.all([job, plan].map((path) => (path ? api.get(path).catch(() => null) : null)));
    if (this.chosen.key !== key) return;
    [this.about.job, this.about.workload] = found;
    this.draw();
  }

  draw() {
    const { kind, key } = this.chosen;
    const steps = kind === "gang" ? this.#gang(key) : kind === "node" ? this.#node(key) : [];
    const stamp = JSON.stringify([kind, key, this.theme.name, steps]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    setText(this.title, kind === "gang" ? `Gang ${key}` : `Node ${key}`);
    const focused = this.body.contains(document.activeElement);
    this.body.replaceChildren(...steps.map((step) => this.#step(step)));
    if (focused && kind) this.title.focus();
  }

  #step({ name, texts, tags = [], tint }) {
    const step = make("div", { class: "step" }, make("b", {}, name), ...texts.map((text) => make("p", {}, text)));
    if (tint) step.style.borderLeftColor = tint;
    if (tags.length) step.append(make("div", { class: "tags" }, ...tags.slice(0, MAX_TAGS).map((tag) => this.#tag(tag))));
    if (tags.length > MAX_TAGS) step.append(make("p", { class: "quiet" }, `and ${tags.length - MAX_TAGS} more`));
    return step;
  }

  #tag([text, kind, key]) {
    return kind ? make("button", { type: "button", onclick: () => this.choose(kind, key) }, text) : make("span", {}, text);
  }

  #gang(key) {
    const group = this.cluster.groups.get(key);
    const members = this.cluster.members(key).sort((a, b) => compare(a.key, b.key));
    if (!group && !members.length) return [{ name: "PodGroup", texts: [`${key} is gone.`] }];
    return [...this.#above(group), ...this.#self(group, key), this.#pods(members), this.#nodes(members)];
  }

  #above(group) {
    if (!group) return [];
    const { owner, workload, parent } = group;
    const { job, workload: plan } = this.about;
    const steps = [];
    if (owner) steps.push({ name: owner.kind, texts: [owner.name, ...ownerTexts(owner.kind, job)], tags: parent ? [] : this.#siblings(group) });
    if (workload) steps.push({ name: "Workload", texts: [workload, ...workloadTexts(plan)] });
    if (parent) steps.push({ name: "CompositePodGroup", texts: [parent], tags: this.#siblings(group) });
    return steps;
  }

  /** The other groups of a tree: below the same composite, or of the same JobSet or LeaderWorkerSet. */
  #siblings({ namespace, owner, parent, name: own }) {
    const isSibling = parent
      ? (one) => one.parent === parent
      : (one) => owner.kind !== "Job" && one.owner?.kind === owner.kind && one.owner.name === owner.name;
    return [...this.cluster.groups.entries()]
      .filter(([, one]) => one.namespace === namespace && one.name !== own && isSibling(one))
      .sort(([a], [b]) => compare(a, b))
      .map(([key, one]) => {
        const members = this.cluster.members(key);
        return [`${one.name}: ${members.filter((pod) => pod.node).length} of ${members.length} pods placed`, "gang", key];
      });
  }

  #self(group, key) {
    if (!group) return [{ name: "PodGroup", texts: [`${key} does not exist: its pods wait for it.`] }];
    const policy = group.minCount ? `at least ${group.minCount} at once` : "no minimum";
    const within = group.topology.length ? `, within one ${group.topology.join(" and one ")}` : "";
    const conditions = group.conditions.map(
      ({ type, status, reason, message, time }) => `${formatTime(time)} ${type} ${status} (${reason})${message ? `: ${message}` : ""}`);
    return [{
      name: "PodGroup", tint: this.cluster.colours.of(key, this.theme.name),
      texts: [group.name, `${policy}${within}, priority ${group.priority}`, ...conditions, whyCommand(group)],
    }];
  }

  #pods(members) {
    const phases = countValues(members.map((pod) => (pod.terminating ? "terminating" : pod.phase)));
    const why = [...countValues(members.filter((pod) => pod.why).map((pod) => pod.why))].map(([text, n]) => `${n} waiting: ${text}`);
    const tags = members.map((pod) => [`${pod.name} ${pod.node ? `→ ${pod.node}` : pod.nominated ? `nominated ${pod.nominated}` : "waits"}`,
      pod.node ? "node" : "", pod.node]);
    return { name: `Pods (${members.length})`, texts: [[...phases].map(([name, n]) => `${n} ${name}`).join(", "), ...why], tags };
  }

  #nodes(members) {
    const nodes = countValues(members.filter((pod) => pod.node && !pod.ended).map((pod) => pod.node));
    const tags = [...nodes].sort(([a], [b]) => compare(a, b)).map(([name, n]) => [`${name} × ${n}`, "node", name]);
    return { name: `Nodes (${nodes.size})`, texts: [], tags };
  }

  #node(name) {
    const node = this.cluster.nodes.get(name);
    if (!node) return [{ name: "Node", texts: [`${name} is gone.`] }];
    const pods = this.cluster.running(name);
    const problems = [!node.ready && "not ready", node.closed && "cordoned", ...node.taints].filter(Boolean);
    return [
      {
        name: "Node",
        texts: [[name, ...problems].join(", "), `has ${formatResources(node.allocatable)}`, `free ${formatResources(free(this.cluster, node))}`],
      },
      { name: "Labels", texts: Object.entries(node.labels).map(([key, value]) => `${key}: ${value}`) },
      {
        name: `Pods (${pods.length})`, texts: [],
        tags: pods.map((pod) => [`${pod.key}, ${pod.phase}`, pod.group ? "gang" : "", pod.group]),
      },
    ];
  }
}

function ownerTexts(kind, owner) {
  if (!owner) return [];
  if (kind === "JobSet") return jobSetTexts(owner);
  if (kind === "LeaderWorkerSet") {
    const { replicas = 0, readyReplicas = 0, updatedReplicas = 0 } = owner.status ?? {};
    return [`${owner.spec.replicas ?? 1} replicas wanted, ${replicas} exist, ${readyReplicas} ready, ${updatedReplicas} updated`];
  }
  return jobTexts(owner);
}

function jobSetTexts({ spec, status = {} }) {
  const counts = new Map((status.replicatedJobsStatus ?? []).map((one) => [one.name, one]));
  const roles = spec.replicatedJobs.map(({ name, replicas = 1 }) => {
    const { ready = 0, succeeded = 0, failed = 0 } = counts.get(name) ?? {};
    return `${name}: ${replicas} Jobs, ${ready} ready, ${succeeded} succeeded, ${failed} failed`;
  });
  return [...roles, `${status.terminalState || "running"}, ${status.restarts ?? 0} restarts`];
}

function jobTexts(job) {
  const { active = 0, succeeded = 0, failed = 0 } = job.status ?? {};
  return [`${job.spec.parallelism ?? 1} at once, ${active} active, ${succeeded} succeeded, ${failed} failed`];
}

function workloadTexts(workload) {
  const templates = workload?.spec?.podGroupTemplates ?? [];
  return templates.map((one) => `template ${one.name}: ${Object.keys(one.schedulingPolicy ?? {}).join(", ")}`);
}

function countValues(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return counts;
}
