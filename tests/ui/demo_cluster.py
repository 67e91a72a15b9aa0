"""A cluster with gangs in every state, for tests and pictures of the page."""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.control_plane import Access, ControlPlane

NAMESPACES = ("research", "serving")
SHAPE = "cpu=96,memory=768Gi,nvidia.com/gpu=8"
TOPOLOGY = "zone=2,rack=8"
#: Reservations after a second instead of a minute.
CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: Reservation
    args: {afterSeconds: 1, mode: Conservative}
"""
FAIL = "{run: 1, failure: 1, exitCode: 42}"


def request(access: Access, method: str, path: str, body: object = None) -> Any:
    """Send a request as the administrator; return the decoded reply."""
    message = urllib.request.Request(
        f"https://{access.host}:{access.port}{path}",
        method=method,
        data=json.dumps(body).encode() if body else None,
        headers={"authorization": f"Bearer {access.token}", "content-type": "application/json"},
    )
    context: ssl.SSLContext = access.tls()
    with urllib.request.urlopen(message, context=context) as answer:
        return json.loads(answer.read())


def jobs_path(namespace: str = "default") -> str:
    """Return the path of the Jobs of a namespace."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def gang_job(
    name: str,
    members: int,
    gpus: int,
    *,
    resource: str = "example.com/gpu",
    cpu: str = "100m",
    memory: str = "",
    seconds: int | None = None,
    deadline: int | None = None,
    priority: str = "",
    topology: str = "",
    annotations: Mapping[str, str] | None = None,
    backoff_limit: int | None = None,
) -> dict[str, Any]:
    """Return a Job that is a gang; its pods end after `seconds`, at the latest at `deadline`."""
    limits = {"cpu": cpu, resource: str(gpus)} | ({"memory": memory} if memory else {})
    container = {"name": "main", "image": "registry.example/x:1", "resources": {"limits": limits}}
    notes = dict(annotations or {}) | (
        {} if seconds is None else {"phalanx.dev/run-seconds": str(seconds)}
    )
    scheduling: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": members}}}
    if topology:
        scheduling["schedulingConstraints"] = {"topology": [{"key": topology}]}
    pod = {"restartPolicy": "Never", "containers": [container]}
    spec: dict[str, Any] = {
        "parallelism": members,
        "completions": members,
        "completionMode": "Indexed",
        "scheduling": scheduling,
        "template": {
            "metadata": {"annotations": notes},
            "spec": pod | ({"priorityClassName": priority} if priority else {}),
        },
    }
    if deadline is not None:
        spec["activeDeadlineSeconds"] = deadline
    if backoff_limit is not None:
        spec["backoffLimit"] = backoff_limit
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def create_gangs(access: Access) -> None:
    """Create gangs that run, wait, are reserved, never fit, have failed and are done."""
    gpu: dict[str, Any] = {"resource": "nvidia.com/gpu", "memory": "64Gi"}
    for name in NAMESPACES:
        request(access, "POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    for name, value in (("urgent", 1000), ("batch", 10)):
        request(
            access, "POST", "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": name}, "value": value},
        )  # fmt: skip
    first: list[tuple[str, dict[str, Any]]] = [
        ("default", gang_job("tokenize", 4, 0, cpu="8", seconds=1, **gpu)),
        ("research", gang_job("broken-loader", 2, 1, cpu="8", backoff_limit=0, **gpu,
                              annotations={"phalanx.dev/stages": FAIL})),
    ]  # fmt: skip
    for at, (name, members, gpus, minutes) in enumerate(
        (
            ("llm-pretrain", 16, 8, 95), ("vision-finetune", 8, 8, 32), ("diffusion-xl", 8, 4, 47),
            ("speech-large", 4, 8, 18), ("protein-folding", 12, 4, 140), ("rlhf-ppo", 6, 8, 64),
            ("embedding-sweep", 10, 2, 12), ("evaluation-suite-with-a-rather-long-name", 3, 4, 26),
        )
    ):  # fmt: skip
        namespace = ("default", *NAMESPACES)[at % 3]
        job = gang_job(name, members, gpus, cpu="24", deadline=60 * minutes, **gpu)
        first.append((namespace, job))
    for namespace, job in first:
        request(access, "POST", jobs_path(namespace), job)
    wait_for_states(access, running=8, completed=1, failed=1)
    for namespace, job in (
        ("research", gang_job("moe-pretrain", 12, 8, cpu="24", priority="urgent", **gpu)),
        ("default", gang_job("world-model", 8, 8, cpu="24", topology=ZONE, **gpu)),
        ("serving", gang_job("distillation", 6, 8, cpu="24", priority="batch", **gpu)),
        ("research", gang_job("giant", 80, 8, cpu="24", **gpu)),
    ):
        request(access, "POST", jobs_path(namespace), job)
    wait_for_states(access, reserved=1, never=1)


ZONE = "topology.kubernetes.io/zone"


def wait_for_states(access: Access, **counts: int) -> list[dict[str, Any]]:
    """Wait until the queue has these numbers of gangs by state; return its entries."""
    end = time.monotonic() + 120
    while True:
        items: list[dict[str, Any]] = request(access, "GET", "/phalanx/v1/queue")["items"]
        states = [item["state"] for item in items]
        if all(states.count(state) >= count for state, count in counts.items()):
            return items
        assert time.monotonic() < end, (counts, states)
        time.sleep(0.3)


@contextmanager
def demo_cluster(folder: Path, nodes: int = 52) -> Iterator[ControlPlane]:
    """Start a control plane with the gangs."""
    config = folder / "scheduler.yaml"
    config.write_text(CONFIG)
    options = ("--nodes", str(nodes), "--shape", SHAPE, "--topology", TOPOLOGY)
    with ControlPlane("--data", ":memory:", "--config", str(config), *options) as plane:
        create_gangs(plane.access)
        yield plane
