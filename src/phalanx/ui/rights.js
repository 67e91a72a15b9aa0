/* Limited rights: says which objects the user may not list, and offers to show one namespace only. */

import { setText } from "./element.js";

const NAMES = { nodes: "nodes", pods: "pods", groups: "PodGroups", events: "events" };
const SERVICE_ACCOUNT = /^system:serviceaccount:([^:]+):/;

/** Returns the namespace of a service account; "" for other users. */
export const defaultNamespace = (user) => SERVICE_ACCOUNT.exec(user)?.[1] ?? "";

export class Rights {
  /** Calls `choose(namespace)` when the user names another namespace. */
  constructor({ form, text, scope, field }, choose) {
    Object.assign(this, { form, text, scope, field, namespace: "" });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      choose(field.value.trim());
    });
  }

  begin(namespace) {
    this.namespace = namespace;
    this.field.value = namespace;
    this.form.hidden = !namespace;
  }

  /** Shows what is missing; nothing if the user may list everything. */
  show(denied) {
    this.form.hidden = !denied.size && !this.namespace;
    setText(this.text, rightsText([...denied], this.namespace));
    const onlyNodes = denied.size === 1 && denied.has("nodes");
    this.scope.hidden = onlyNodes && !this.namespace;
  }
}

/** Says what is shown, what is missing, and what to do. */
export function rightsText(denied, namespace) {
  const shown = namespace ? `Only the namespace ${namespace} is shown. ` : "";
  if (!denied.length) return shown.trim();
  // In the order of the table: answers of the server arrive in any order.
  const names = Object.keys(NAMES).filter((name) => denied.includes(name));
  const cluster = names.filter((name) => name === "nodes").map((name) => NAMES[name]);
  const scoped = names.filter((name) => name !== "nodes").map((name) => NAMES[name]);
  const parts = [];
  if (scoped.length) parts.push(`You may not list ${join(scoped)} in ${namespace ? `the namespace ${namespace}` : "all namespaces"}${namespace ? "" : "; name a namespace that you may read"}.`);
  if (cluster.length) parts.push(`You may not list ${join(cluster)}: the map and free resources are missing.`);
  return shown + parts.join(" ");
}

/** Says that a list is empty because the user may not list what it is made of; "" if the user may. */
export function hiddenText(denied, names, subject) {
  const found = names.filter((name) => denied.has(name)).map((name) => NAMES[name]);
  return found.length ? `You may not list ${join(found)}: ${subject} cannot be shown.` : "";
}

const join = (names) => (names.length < 2 ? names.join() : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`);
