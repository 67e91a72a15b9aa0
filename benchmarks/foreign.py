"""Gangs on a foreign API server: custom resources, ordinary bindings, the scheduler as a process.

Our own server acts as the foreign one: without the workload APIs and without GroupBindings.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import uvloop

from benchmarks import api_calls as calls
from benchmarks.environment import READY_LIMIT, BenchmarkEnvironment, BenchmarkFailed
from benchmarks.gangs import BoundPods, Workload, wait_until_bound
from benchmarks.http_client import JSON, Call, send_all
from benchmarks.process_usage import measure_cpu, resident_megabytes
from benchmarks.request_stages import read_metrics
from benchmarks.result import Result
from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.workload_sources import CUSTOM_POD_GROUP, POD_GROUP_LABEL
from phalanx.controllers.scheduler_runner import FOREIGN_SCHEDULER
from tools.control_plane import Command, ControlPlane

WORKLOAD = Workload(5000, 1000, 3)
#: Requests of the scheduler per pod: the bind, its event, and a third of those about its group.
MAX_REQUESTS_PER_POD = 3.0
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_FOREIGN = ("--without", "scheduler,controllers,nodes", "--nodes", "0")
_GATES = ("--feature-gates", "GenericWorkload=false,GroupBinding=false")
_REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)", re.MULTILINE)
_WRITES = ("POST", "PATCH", "PUT", "DELETE")


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
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
