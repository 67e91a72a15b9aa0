"""Gangs on a foreign API server: custom resources, ordinary bindings, the scheduler as a process.

Our own server acts as the foreign one: without the workload APIs and without GroupBindings.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import uvloop

from benchmarks import api_calls as calls
from benchmarks.costs import (
    cpu_seconds,
    measure_cpu,
    peak_megabytes,
    resident_megabytes,
)
from benchmarks.environment import READY_LIMIT, BenchmarkEnvironment, BenchmarkFailed, Result
from benchmarks.footprint import fill_store
from benchmarks.gangs import BoundPods, Workload, wait_until_bound
from benchmarks.http_client import JSON, Call, send_all
from benchmarks.request_stages import read_metrics
from phalanx.api.core import Pod
from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.protobuf import decode
from phalanx.api.protobuf_encoder import encode
from phalanx.api.workload_sources import CUSTOM_POD_GROUP, POD_GROUP_LABEL
from phalanx.client.client import LIST_PAGE_SIZE
from phalanx.controllers.scheduler_runner import FOREIGN_SCHEDULER
from tools.control_plane import Command, ControlPlane

WORKLOAD = Workload(5000, 1000, 3)
#: Nodes and running pods of other schedulers, for the memory of our components.
CLUSTERS = ((100, 1_000), (1_000, 20_000), (5_000, 100_000))
#: Megabytes that a component may have in the largest of these.
MEMORY_LIMITS = {"scheduler": 600.0, "controllers": 450.0}
#: Components and the least options with which they run there.
COMPONENTS = (("scheduler",), ("controllers", "--controllers", "job,job-groups"))
#: Requests of the scheduler per pod: the bind, its event, and a third of those about its group.
MAX_REQUESTS_PER_POD = 3.0
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_FOREIGN = ("--without", "scheduler,controllers,nodes", "--nodes", "0")
_GATES = ("--feature-gates", "GenericWorkload=false,GroupBinding=false")
_REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)", re.MULTILINE)
#: Pages of a list that are decoded for a figure.
_DECODED_PAGES = 10
_WRITES = ("POST", "PATCH", "PUT", "DELETE")


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure gangs on a foreign server, and the memory of our components beside a large one."""
    yield _measure_decoding()
    yield from _measure_gangs(setting)
    for nodes, pods in CLUSTERS:
        yield from _measure_memory(setting, setting.size(nodes), setting.size(pods))


class _PodPage(msgspec.Struct):
    items: list[Pod]


def _measure_decoding() -> Result:
    """Compare JSON, which our clients ask for, with protobuf: CPU time per pod of a full page."""
    pod: dict[str, Any] = json.loads(calls.pod("pod-0", on="node-0", cpu="1")[2])
    container = pod["spec"]["containers"][0]
    container["env"] = [{"name": f"VARIABLE_{n}", "value": "x" * 20} for n in range(10)]
    types = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    pod["status"] = {
        "phase": "Running",
        "conditions": [{"type": t, "status": "True"} for t in types],
    }
    page = {"apiVersion": "v1", "kind": "PodList", "items": [pod] * LIST_PAGE_SIZE}
    as_json, as_protobuf = json.dumps(page, separators=(",", ":")).encode(), encode(page)
    assert as_protobuf is not None
    decoder = msgspec.json.Decoder(_PodPage)

    def measure(decode_page: Callable[[], object]) -> float:
        begin = time.process_time()
        for _ in range(_DECODED_PAGES):
            decode_page()
        return (time.process_time() - begin) / _DECODED_PAGES / LIST_PAGE_SIZE * 1e6

    beside = {
        "us from protobuf": measure(lambda: msgspec.convert(decode(as_protobuf), _PodPage)),
        "bytes": len(as_json) / LIST_PAGE_SIZE,
        "bytes in protobuf": len(as_protobuf) / LIST_PAGE_SIZE,
    }
    seconds = measure(lambda: decoder.decode(as_json))
    return Result("a listed pod, decoded from JSON", seconds, "us", beside=beside)


def _measure_memory(setting: BenchmarkEnvironment, nodes: int, pods: int) -> Iterator[Result]:
    """Measure the memory of each component once its caches are filled, and CPU time until then."""
    made = [calls.node(f"node-{n}") for n in range(nodes)]
    made += [_running_pod(f"pod-{n}", f"node-{n % nodes}") for n in range(pods)]
    is_largest = (nodes, pods) == CLUSTERS[-1]
    with setting.folder() as folder:
        uvloop.run(fill_store(folder, made))
        data = ("--data", str(folder))
        with ControlPlane(*data, *_FOREIGN, *_GATES, limit=READY_LIMIT) as plane:
            definition = json.dumps(workload_definitions()[-1]).encode()
            uvloop.run(send_all(plane.access, [("POST", DEFINITIONS, definition, JSON)]))
            for name, *options in COMPONENTS:
                options += ["--kubeconfig", str(plane.kubeconfig), "--no-leader-elect"]
                with Command(name, *options, limit=READY_LIMIT) as component:
                    beside = {
                        "peak MB": peak_megabytes(component.pid),
                        "CPU s to ready": cpu_seconds(component.pid),
                    }
                    size = resident_megabytes(component.pid)
                title = f"{name}, {nodes:,} nodes and {pods:,} pods"
                limit = MEMORY_LIMITS[name] if is_largest else None
                yield Result(title, size, "MB", limit, beside=beside)


def _running_pod(name: str, node: str) -> Call:
    """Return the request for a pod as large as those of a Deployment on a Kubernetes cluster.

    Its fields that we do not read are as many as there: variables, volumes, owners, who wrote what.
    """
    method, path, text, content = calls.pod(name, on=node)
    body: dict[str, Any] = json.loads(text)
    body["metadata"] |= {
        "labels": {"app": "web", "pod-template-hash": "5d8f7c6b9", "team": "research"},
        "annotations": {f"example.com/note-{n}": "x" * 80 for n in range(4)},
        "ownerReferences": [
            {
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d8f7c6b9",
                "uid": "6a1f3a52-91a5-4c3e-9d57-0c2a6c9b8e11", "controller": True,
            }
        ],
    }  # fmt: skip
    (container,) = body["spec"]["containers"]
    container |= {
        "env": [{"name": f"VARIABLE_{n}", "value": "x" * 30} for n in range(20)],
        "args": ["--option=" + "y" * 20] * 6,
        "volumeMounts": [{"name": f"v{n}", "mountPath": f"/mnt/{n}"} for n in range(4)],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
    }
    body["spec"]["volumes"] = [
        {"name": f"v{n}", "configMap": {"name": f"settings-{n}"}} for n in range(4)
    ]
    body["spec"]["tolerations"] = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
        for key in ("not-ready", "unreachable")
    ]
    return method, path, json.dumps(body).encode(), content


def _measure_gangs(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure time, CPU time and requests from the first created pod to the last binding."""
    full = WORKLOAD
    work = Workload(setting.size(full.nodes), setting.size(full.gangs), full.size)
    name = f"{work.gangs:,} gangs x {work.size}, {work.nodes:,} nodes, foreign"
    with setting.plane(*_FOREIGN, *_GATES) as plane:
        definition = json.dumps(workload_definitions()[-1]).encode()
        uvloop.run(send_all(plane.access, [("POST", DEFINITIONS, definition, JSON)]))
        uvloop.run(send_all(plane.access, work.node_calls()))
        uvloop.run(send_all(plane.access, [_custom_group(call) for call in work.group_calls()]))
        options = ("--kubeconfig", str(plane.kubeconfig), "--no-leader-elect")
        with Command("scheduler", *options, limit=READY_LIMIT) as scheduler:
            before = _count_writes(plane)
            begin = time.monotonic()
            with measure_cpu(plane.pid) as server, measure_cpu(scheduler.pid) as own:
                uvloop.run(send_all(plane.access, [_custom_pod(call) for call in work.pod_calls()]))
                bound_at = _wait_until_bound(plane, work.pods)
            time.sleep(5 if not setting.is_quick else 2)
            after, memory = _count_writes(plane), resident_megabytes(scheduler.pid)
    requests = after - before
    # The driver's own requests.
    requests["POST pods"] -= work.pods
    each = {what: count / work.pods for what, count in requests.most_common(5)}
    cost = own.server / work.pods * 1e6
    beside = {"server us per pod": server.server / work.pods * 1e6, "scheduler MB": memory}
    yield Result(name, bound_at - begin, "s", beside=beside)
    yield Result("the scheduler's CPU time per pod", cost, "us")
    total = requests.total() / work.pods
    yield Result("its requests per pod", total, "requests", MAX_REQUESTS_PER_POD, beside=each)


def _wait_until_bound(plane: ControlPlane, pods: int) -> float:
    moments: list[float] = []
    uvloop.run(wait_until_bound(plane.access, BoundPods(pods), moments.append))
    if not moments or not moments[-1]:
        raise BenchmarkFailed("the pods were not bound")
    return moments[-1]


def _custom_group(call: Call) -> Call:
    """Turn the request for a PodGroup of scheduling.k8s.io into one for ours."""
    body: dict[str, Any] = json.loads(call[2])
    body["apiVersion"] = CUSTOM_POD_GROUP.api_version
    return "POST", CUSTOM_POD_GROUP.url_path("default"), json.dumps(body).encode(), JSON


def _custom_pod(call: Call) -> Call:
    """Turn the request for a pod of a group into one that a foreign server keeps."""
    body: dict[str, Any] = json.loads(call[2])
    group = body["spec"].pop("schedulingGroup")["podGroupName"]
    body["metadata"].setdefault("labels", {})[POD_GROUP_LABEL] = group
    body["spec"]["schedulerName"] = FOREIGN_SCHEDULER
    return "POST", calls.PODS, json.dumps(body).encode(), JSON


def _count_writes(plane: ControlPlane) -> Counter[str]:
    """Return the writes that the server has answered, by verb and resource, except of Leases."""
    found: Counter[str] = Counter()
    for labels, count in _REQUESTS.findall(read_metrics(plane)):
        values = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        resource = values["resource"] + (
            f"/{values['subresource']}" if values["subresource"] else ""
        )
        if values["verb"] in _WRITES and resource != "leases":
            found[f"{values['verb']} {resource}"] += int(float(count))
    return found
