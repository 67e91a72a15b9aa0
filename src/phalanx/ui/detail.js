/* The detail page: shows one gang, node, pod or owner, and requests what is not watched. */

import { drawBlock } from "./blocks.js";
import { badge, make, setText } from "./element.js";
import { gangDetail } from "./gang_detail.js";
import { LogView } from "./log.js";
import { nodeDetail, ownerDetail, podDetail } from "./object_detail.js";

const SCHEDULING = "/apis/scheduling.k8s.io/v1beta1";
const DEVICES = "/apis/resource.k8s.io/v1";
/** Owners that the page can request; of others it shows only the name. */
const OWNER_PATHS = {
  Job: (namespace, name) => `/apis/batch/v1/namespaces/${namespace}/jobs/${name}`,
  JobSet: (namespace, name) => `/apis/jobset.x-k8s.io/v1alpha2/namespaces/${namespace}/jobsets/${name}`,
  LeaderWorkerSet: (namespace, name) => `/apis/leaderworkerset.x-k8s.io/v1/namespaces/${namespace}/leaderworkersets/${name}`,
};
const OWNERS = { job: "Job", jobset: "JobSet", lws: "LeaderWorkerSet" };

export class Detail {
  constructor({ section, title, state, body, log }, cluster, { theme, queue }) {
    Object.assign(this, { section, title, state, body, cluster, theme, queue });
    this.log = new LogView(log);
    this.chosen = { kind: "", key: "" };
    this.about = {};
    this.stamp = "";
  }

  /** Shows another object, or nothing; requests what belongs to it again. */
  async follow(api, kind, key) {
    const isOther = key !== this.chosen.key || kind !== this.chosen.kind;
    if (isOther) this.about = {};
    this.chosen = { kind, key };
    this.section.hidden = !kind;
    this.draw(api);
    if (!kind) return;
    const about = await this.#load(api, kind, key);
    if (this.chosen.key !== key || this.chosen.kind !== kind) return;
    this.about = { ...about, isLoaded: true };
    this.draw(api);
  }

  async #load(api, kind, key) {
    const read = (path) => (path ? api.get(path).catch(() => null) : null);
    if (kind === "node") {
      const selector = new URLSearchParams({ fieldSelector: `spec.nodeName=${key}` });
      const [slices, claims] = await Promise.all([read(`${DEVICES}/resourceslices?${selector}`), read(`${DEVICES}/resourceclaims`)]);
      return { slices: slices?.items, claims: claims?.items };
    }
    const [namespace, name] = key.split("/").map(encodeURIComponent);
    if (Object.hasOwn(OWNERS, kind)) return { owner: await read(OWNER_PATHS[OWNERS[kind]](namespace, name)) };
    const gang = kind === "gang" && this.cluster.findGang(key);
    const group = gang && (this.cluster.groups.get(gang) ?? this.cluster.childrenOf(gang)[0]);
    if (!group) return {};
    const [owner, workload] = await Promise.all([
      read(group.owner && OWNER_PATHS[group.owner.kind]?.(namespace, encodeURIComponent(group.owner.name))),
      read(group.workload && `${SCHEDULING}/namespaces/${namespace}/workloads/${group.workload}`)]);
    return { owner, workload };
  }

  #model() {
    const { chosen: { kind, key }, cluster, queue, about, theme: { name: theme } } = this;
    if (kind === "gang") return gangDetail(cluster, queue, key, { about, theme });
    if (kind === "node") return nodeDetail(cluster, key, { about });
    if (kind === "pod") return podDetail(cluster, key);
    return ownerDetail(cluster, queue, kind, key, { about, theme });
  }

  draw(api) {
    if (!this.chosen.kind) return this.log.close();
    const model = this.#model();
    const stamp = JSON.stringify([this.chosen, this.theme.name, model]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    setText(this.title, model.title);
    this.state.replaceChildren(...(model.state ? [badge(model.state.tone, model.state.label)] : []));
    const focused = this.body.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const areas = { "": [], main: [], side: [], wide: [] };
    for (const block of model.blocks) areas[block.area ?? ""].push(drawBlock(block));
    this.body.replaceChildren(
      ...areas[""], make("div", { class: "column main" }, ...areas.main), make("div", { class: "column side" }, ...areas.side), ...areas.wide);
    if (focused) ([...this.body.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused) ?? this.title).focus();
    if (model.log) this.log.show(api, model.log);
    else this.log.close();
  }
}
