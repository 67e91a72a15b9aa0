/* What is chosen, step by step: a gang from its Job over Workload and PodGroup to pods and nodes; or a node with its pods. */

import { compare } from "./cluster.js";
import { clock, make, say } from "./element.js";
import { free } from "./room.js";
import { spelled } from "./quantity.js";
import { command } from "./waiting.js";

const SCHEDULING = "/apis/scheduling.k8s.io/v1beta1";
const MOST = 120;
/** Owners that the page knows how to ask for; others are only named. */
const OWNERS = { "batch/v1 Job": (namespace, name) => `/apis/batch/v1/namespaces/${namespace}/jobs/${name}` };

export class Chain {
  constructor({ section, title, body }, cluster, { theme, choose }) {
    Object.assign(this, { section, title, body, cluster, theme, choose });
    this.chosen = { kind: "", key: "" };
    this.about = {};
    this.stamp = "";
  }

  /** Follow something else, or nothing; or the same, with its Job and Workload as they are now. */
  async follow(api, kind, key) {
    if (key !== this.chosen.key) this.about = {};
    this.chosen = { kind, key };
    this.section.hidden = !kind;
    this.draw();
    if (kind === "gang") await this.#ask(api, key);
  }

  /** Job and Workload are asked for by name: they change too rarely to be watched. */
  async #ask(api, key) {
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
    say(this.title, kind === "gang" ? `Gang ${key}` : `Node ${key}`);
    const focused = this.body.contains(document.activeElement);
    this.body.replaceChildren(...steps.map((step) => this.#step(step)));
    if (focused && kind) this.title.focus();
  }

  #step({ name, texts, tags = [], tint }) {
    const step = make("div", { class: "step" }, make("b", {}, name), ...texts.map((text) => make("p", {}, text)));
    if (tint) step.style.borderLeftColor = tint;
    if (tags.length) step.append(make("div", { class: "tags" }, ...tags.slice(0, MOST).map((tag) => this.#tag(tag))));
    if (tags.length > MOST) step.append(make("p", { class: "quiet" }, `and ${tags.length - MOST} more`));
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
    if (owner) steps.push({ name: owner.kind, texts: [owner.name, ...jobTexts(job)] });
    if (workload) steps.push({ name: "Workload", texts: [workload, ...workloadTexts(plan)] });
    if (parent) steps.push({ name: "CompositePodGroup", texts: [parent] });
    return steps;
  }

  #self(group, key) {
    if (!group) return [{ name: "PodGroup", texts: [`${key} is not there: its pods wait for it.`] }];
    const policy = group.minCount ? `at least ${group.minCount} at once` : "no minimum";
    const within = group.topology.length ? `, within one ${group.topology.join(" and one ")}` : "";
    const conditions = group.conditions.map(
      ({ type, status, reason, message, time }) => `${clock(time)} ${type} ${status} (${reason})${message ? `: ${message}` : ""}`);
    return [{
      name: "PodGroup", tint: this.cluster.colours.of(key, this.theme.name),
      texts: [group.name, `${policy}${within}, priority ${group.priority}`, ...conditions, command(group)],
    }];
  }

  #pods(members) {
    const phases = tally(members.map((pod) => (pod.leaving ? "leaving" : pod.phase)));
    const why = [...tally(members.filter((pod) => pod.why).map((pod) => pod.why))].map(([text, n]) => `${n} waiting: ${text}`);
    const tags = members.map((pod) => [`${pod.name} ${pod.node ? `→ ${pod.node}` : pod.promised ? `promised ${pod.promised}` : "waits"}`,
      pod.node ? "node" : "", pod.node]);
    return { name: `Pods (${members.length})`, texts: [[...phases].map(([name, n]) => `${n} ${name}`).join(", "), ...why], tags };
  }

  #nodes(members) {
    const nodes = tally(members.filter((pod) => pod.node && !pod.ended).map((pod) => pod.node));
    const tags = [...nodes].sort(([a], [b]) => compare(a, b)).map(([name, n]) => [`${name} × ${n}`, "node", name]);
    return { name: `Nodes (${nodes.size})`, texts: [], tags };
  }

  #node(name) {
    const node = this.cluster.nodes.get(name);
    if (!node) return [{ name: "Node", texts: [`${name} is gone.`] }];
    const pods = this.cluster.running(name);
    const faults = [!node.ready && "not ready", node.closed && "cordoned", ...node.taints].filter(Boolean);
    return [
      {
        name: "Node",
        texts: [[name, ...faults].join(", "), `has ${spelled(node.allocatable)}`, `free ${spelled(free(this.cluster, node))}`],
      },
      { name: "Labels", texts: Object.entries(node.labels).map(([key, value]) => `${key}: ${value}`) },
      {
        name: `Pods (${pods.length})`, texts: [],
        tags: pods.map((pod) => [`${pod.key}, ${pod.phase}`, pod.group ? "gang" : "", pod.group]),
      },
    ];
  }
}

function jobTexts(job) {
  if (!job) return [];
  const { active = 0, succeeded = 0, failed = 0 } = job.status ?? {};
  return [`${job.spec.parallelism ?? 1} at once, ${active} active, ${succeeded} succeeded, ${failed} failed`];
}

function workloadTexts(workload) {
  const templates = workload?.spec?.podGroupTemplates ?? [];
  return templates.map((one) => `template ${one.name}: ${Object.keys(one.schedulingPolicy ?? {}).join(", ")}`);
}

function tally(values) {
  const found = new Map();
  for (const value of values) found.set(value, (found.get(value) ?? 0) + 1);
  return found;
}
