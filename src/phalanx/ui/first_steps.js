/* What a user of an empty cluster can do next: add nodes, or create a first gang. */

import { drawBlock } from "./blocks.js";

const FIRST_GANG = `kubectl create -f - <<'EOF'
apiVersion: batch/v1
kind: Job
metadata: {name: first-gang}
spec:
  parallelism: 3
  completions: 3
  completionMode: Indexed
  scheduling: {schedulingPolicy: {gang: {}}}
  template:
    metadata:
      annotations: {phalanx.dev/run-seconds: "600"}
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: registry.example/train:1
        resources: {requests: {cpu: 100m}}
EOF`;
const ADD_NODES = "phalanx nodes --nodes 3 --shape cpu=8,memory=32Gi";

/** Returns the blocks for a cluster without gangs. */
export function firstSteps(hasNodes) {
  return hasNodes
    ? [{ type: "text", lines: ["A gang is a Job whose pods start together or not at all. With the kubeconfig of this cluster, this creates one that runs for ten minutes:"] }, { type: "command", text: FIRST_GANG }]
    : [{ type: "text", lines: ["Pods need nodes. With the kubeconfig of this cluster, this adds simulated nodes for as long as it runs:"] }, { type: "command", text: ADD_NODES }];
}

export class FirstSteps {
  constructor({ section, body }) {
    Object.assign(this, { section, body, shown: null });
  }

  /** Shows the next step of an empty cluster; nothing in any other. */
  show(cluster, isEmpty) {
    this.section.hidden = !isEmpty;
    const hasNodes = cluster.nodes.size > 0;
    if (!isEmpty || this.shown === hasNodes) return;
    this.shown = hasNodes;
    this.body.replaceChildren(...firstSteps(hasNodes).map(drawBlock));
  }
}
