"""Where the server spends the time of a create: its stages, from `/metrics`.

Stages are parts of one request, with two exceptions: `commit` is the time that a request waits for
the disk, together with others, and `publish` runs once per commit. The rest of the CPU time (TLS,
HTTP, routing, the reply, the writer thread) is not measured by a stage.
"""

from __future__ import annotations

import http.client
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import uvloop

from benchmarks import api_calls as calls
from benchmarks.costs import measure_cpu
from benchmarks.environment import WITHOUT_COMPONENTS, BenchmarkEnvironment, Result
from benchmarks.http_client import send_all
from tools.control_plane import ControlPlane

REQUESTS = 3_000
STAGES = ("authorise", "parse", "admit", "commit", "publish")
#: Waiting, not work.
QUEUE_STAGES = "commit"
_SECONDS, _COUNT = (
    re.compile(rf'^phalanx_stage_seconds_{part}\{{stage="(\w+)"\}} (\S+)', re.MULTILINE)
    for part in ("sum", "count")
)


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure the microseconds per create in each stage, with eight clients."""
    count = setting.size(REQUESTS)
    with setting.plane(*WITHOUT_COMPONENTS) as plane:
        before = stage_totals(plane)
        with measure_cpu(plane.pid) as spent:
            uvloop.run(send_all(plane.access, [calls.pod(f"pod-{n}") for n in range(count)]))
        after = stage_totals(plane)
    costs = {
        stage: (after[stage].seconds - before[stage].seconds) / count * 1e6 for stage in STAGES
    }
    for stage, cost in costs.items():
        yield Result(f"create: {stage}", cost, "us waiting" if stage == QUEUE_STAGES else "us")
    whole = spent.server / count * 1e6
    measured = sum(cost for stage, cost in costs.items() if stage != QUEUE_STAGES)
    yield Result("create: what no stage measures", whole - measured, "us")
    yield Result("create: all of the server's work", whole, "us")


def stage_costs(plane: ControlPlane) -> dict[str, float]:
    """Return the microseconds per execution of each stage since the start."""
    totals = stage_totals(plane)
    return {f"{name} us": total.seconds / total.count * 1e6 for name, total in totals.items()}


@dataclass(slots=True)
class StageTotal:
    """Seconds and executions of one stage since the start."""

    seconds: float = 0.0
    count: float = 0.0


def stage_totals(plane: ControlPlane) -> defaultdict[str, StageTotal]:
    """Read the stages from `/metrics`."""
    totals: defaultdict[str, StageTotal] = defaultdict(StageTotal)
    for stage, seconds in _SECONDS.findall(text := read_metrics(plane)):
        totals[stage].seconds = float(seconds)
    for stage, count in _COUNT.findall(text):
        totals[stage].count = float(count)
    return totals


def read_metrics(plane: ControlPlane) -> str:
    """Return the metrics of a server as text; "" if it does not answer."""
    access = plane.access
    wire = http.client.HTTPSConnection(access.host, access.port, context=access.tls(), timeout=60)
    wire.request("GET", "/metrics", headers={"Authorization": f"Bearer {access.token}"})
    answer = wire.getresponse()
    text = answer.read().decode()
    wire.close()
    return text if answer.status == 200 else ""
