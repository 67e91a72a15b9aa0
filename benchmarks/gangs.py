"""Measures the time from the first created pod to the last binding, on an empty control plane.

    python -m benchmarks.gangs --kubeconfig FILE --nodes 5000 --gangs 1000 --size 3

Nodes have 4 CPU, 32 GiB and 110 pods; pods request 100m and 100Mi. One POST per object over TLS,
from another process than the server's, on eight connections. A watch in a third process observes
the bindings. Then every pod must have its node, its PodScheduled condition and its Scheduled event.
Prints one line of JSON; the exit code is 1 if something is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks import api_calls as calls
from benchmarks.api_calls import EVENTS, PODS
from benchmarks.costs import measure_cpu
from benchmarks.http_client import Call, HttpConnection, pages, send_all
from tools.control_plane import Access

CHECKS, CHECK_EVERY = 30, 1.0
DEVICES_PER_NODE = 8
LOW, HIGH = "low-priority", "high-priority"


@dataclass(frozen=True, slots=True)
class Workload:
    """The numbers of objects; `plain` pods have no group.

    With `racks` every gang must be in one rack. With `victims`, gangs of lower priority that are
    evicted as a whole, the victims fill all nodes and each other pod needs a whole node.
    """

    nodes: int
    gangs: int
    size: int
    plain: bool = False
    racks: int = 0
    victims: int = 0
    victim_size: int = 1
    #: Every pod has a device: "named" claims that exist before, or claims from a "template"; or a
    #: claim that is bound to a "volume".
    claims: str = ""

    @property
    def pods(self) -> int:
        """The number of pods of all gangs."""
        return self.gangs * self.size

    def node_calls(self) -> list[Call]:
        """Return the requests that create ready nodes and remove their not-ready taints."""
        names = [f"node-{n:06}" for n in range(self.nodes)]
        racks = [f"rack-{n % self.racks}" if self.racks else "" for n in range(self.nodes)]
        made = [calls.node(name, rack) for name, rack in zip(names, racks, strict=True)]
        devices = [calls.resource_slice(name, DEVICES_PER_NODE) for name in names]
        made += devices if self.claims in ("named", "template") else []
        return made + [calls.remove_taints(name) for name in names]

    def claim_calls(self) -> list[Call]:
        """Return the requests that create the class, and the template or the claims."""
        if not self.claims:
            return []
        if self.claims == "volume":
            return [one for n in range(self.pods) for one in calls.bound_volume(f"pod-{n}")]
        if self.claims == "template":
            return [calls.device_class(), calls.claim_template()]
        return [calls.device_class(), *(calls.claim(f"pod-{n}") for n in range(self.pods))]

    def class_calls(self) -> list[Call]:
        """Return the requests that create the priority classes of victims and preemptors."""
        classes = [calls.priority_class(LOW, 1), calls.priority_class(HIGH, 1000)]
        return classes if self.victims else []

    def victim_calls(self) -> list[Call]:
        """Return the requests that create the victims."""
        if not self.victims:
            return []
        count, size = self.victims, self.victim_size
        cpu = f"{4000 * self.nodes // (count * size)}m"
        return [
            *(calls.pod_group(f"low-{n}", size, importance=LOW, whole=True) for n in range(count)),
            *(calls.pod(f"low-{n}-{m}", group=f"low-{n}", cpu=cpu, importance=LOW)
              for n in range(count) for m in range(size)),
        ]  # fmt: skip

    @property
    def importance(self) -> str:
        """The priority class of the gangs."""
        return HIGH if self.victims else ""

    def group_calls(self) -> list[Call]:
        """Return the requests that create the PodGroups."""
        gangs = 0 if self.plain else self.gangs
        key = "rack" if self.racks else ""
        return [
            calls.pod_group(f"gang-{n}", self.size, key=key, importance=self.importance)
            for n in range(gangs)
        ]

    def pod_calls(self) -> list[Call]:
        """Return the requests that create the pods, gang by gang."""
        groups = ("" if self.plain else f"gang-{n // self.size}" for n in range(self.pods))
        cpu = "4" if self.victims else ""
        return [
            calls.pod(
                f"pod-{n}",
                group=group,
                cpu=cpu,
                importance=self.importance,
                claims=self.claims,
            )
            for n, group in enumerate(groups)
        ]


# ---- observing bindings --------------------------------------------------------------------------


class Meta(msgspec.Struct, frozen=True):
    name: str = ""


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class Pod(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: Spec = Spec()


class PodEvent(msgspec.Struct, frozen=True):
    object: Pod


class BoundPods:
    """The names of bound pods with a prefix, from a list and a watch, until all are bound."""

    def __init__(self, count: int, prefix: str = "pod-") -> None:
        self._names: set[str] = set()
        self._count, self._prefix, self._rest = count, prefix, b""
        self._decoder = msgspec.json.Decoder(PodEvent)

    @property
    def complete(self) -> bool:
        """Whether all pods are bound."""
        return len(self._names) >= self._count

    async def catch_up(self, wire: HttpConnection) -> str:
        """List the pods; return the revision to watch from."""
        revision, self._rest = "", b""
        async for page in pages(wire, PODS):
            revision = revision or page["metadata"]["resourceVersion"]
            for pod in page["items"]:
                self._record(pod["metadata"]["name"], pod["spec"].get("nodeName", ""))
        return revision

    def feed(self, piece: bytes) -> bool:
        """Process the next bytes of the watch; return whether all pods are bound."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            pod = self._decoder.decode(line).object
            self._record(pod.metadata.name, pod.spec.node_name)
        return self.complete

    def _record(self, name: str, node: str) -> None:
        if node and name.startswith(self._prefix):
            self._names.add(name)


async def wait_until_bound(access: Access, bound: BoundPods, tell: Callable[[float], None]) -> None:
    """Send 0 when the watch is about to open, then the time at which all pods were bound."""
    while not bound.complete:
        wire = await HttpConnection.open(access)
        revision = await bound.catch_up(wire)
        tell(0.0)
        await wire.stream(f"{PODS}?watch=1&resourceVersion={revision}", bound.feed)
    tell(time.monotonic())


def watch_bound(kubeconfig: Path, count: int, pipe: Connection) -> None:
    """Run `wait_until_bound` in its own process."""
    uvloop.run(wait_until_bound(Access.read(kubeconfig), BoundPods(count), pipe.send))


# ---- the run -------------------------------------------------------------------------------------


async def find_missing(access: Access, workload: Workload) -> list[str]:
    """Return what is missing: pods without a node, a condition or an event."""
    wire = await HttpConnection.open(access)
    bound = with_condition = 0
    async for page in pages(wire, PODS):
        for pod in page["items"]:
            if not pod["metadata"]["name"].startswith("pod-"):
                continue
            bound += bool(pod["spec"].get("nodeName"))
            with_condition += any(
                condition["type"] == "PodScheduled" and condition["status"] == "True"
                for condition in pod["status"].get("conditions") or ()
            )
    events = {
        event["involvedObject"]["name"]
        async for page in pages(wire, EVENTS)
        for event in page["items"]
        if event["reason"] == "Scheduled"
    }
    wire.close()
    counts = {"nodes": bound, "conditions": with_condition, "events": len(events)}
    return [f"{n} of {workload.pods} {what}" for what, n in counts.items() if n < workload.pods]


async def find_missing_after_retries(access: Access, workload: Workload) -> list[str]:
    """Return what is still missing after conditions and events had time to arrive."""
    for _ in range(CHECKS):
        if not await find_missing(access, workload):
            return []
        await asyncio.sleep(CHECK_EVERY)
    return await find_missing(access, workload)


async def measure(
    kubeconfig: Path, workload: Workload, pause: float, *, limit: float, server: int
) -> dict[str, Any]:
    """Run once; return the measurements and what is missing."""
    access = Access.read(kubeconfig)
    await send_all(access, workload.node_calls())
    if victims := workload.victim_calls():
        await send_all(access, workload.class_calls())
        await send_all(access, victims)
        await _all_bound(access, workload.victims * workload.victim_size)
    await send_all(access, workload.claim_calls())
    await send_all(access, workload.group_calls())
    await asyncio.sleep(pause)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    watcher = spawn.Process(
        target=watch_bound, args=(kubeconfig, workload.pods, there), daemon=True
    )
    watcher.start()
    await asyncio.to_thread(here.recv)
    pods = workload.pod_calls()
    begin = time.monotonic()
    with measure_cpu(server) as spent:
        await send_all(access, pods)
        created = time.monotonic() - begin
        bound = await asyncio.to_thread(_last_message, here, begin + limit) - begin
    watcher.kill()
    return {
        **asdict(workload),
        "created_s": round(created, 3),
        "bound_s": round(bound, 3),
        "pods_per_s": round(workload.pods / bound, 1),
        "server_s": spent.server,
        "driver_percent": spent.driver_share,
        "missing": await find_missing_after_retries(access, workload),
    }


async def _all_bound(access: Access, count: int) -> None:
    """Wait until a number of pods is bound, for half a minute at most."""
    wire = await HttpConnection.open(access)
    for _ in range(CHECKS):
        bound = 0
        async for page in pages(wire, PODS):
            bound += sum(bool(pod["spec"].get("nodeName")) for pod in page["items"])
        if bound >= count:
            break
        await asyncio.sleep(CHECK_EVERY)
    wire.close()


def _last_message(pipe: Connection, end: float) -> float:
    """Return the time that the watcher sends, or the present time after a timeout."""
    while pipe.poll(max(0.0, end - time.monotonic())):
        if moment := float(pipe.recv()):
            return moment
    return time.monotonic()


def main() -> int:
    """Run one workload against the server of a kubeconfig."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--gangs", type=int, default=1000)
    parser.add_argument("--size", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="pods without groups")
    parser.add_argument("--racks", type=int, default=0, help="every gang in one of so many racks")
    parser.add_argument("--victims", type=int, default=0, help="gangs that must make way")
    parser.add_argument("--victim-size", type=int, default=1, help="pods of each of these")
    parser.add_argument(
        "--claims", choices=("named", "template", "volume"), default="", help="of pods"
    )
    parser.add_argument("--pause", type=float, default=2, help="seconds for caches to fill")
    parser.add_argument("--limit", type=float, default=300, help="seconds to wait for the last pod")
    parser.add_argument("--server", type=int, default=0, help="process whose work is measured too")
    options = parser.parse_args()
    workload = Workload(
        options.nodes, options.gangs, options.size, options.plain, options.racks, options.victims,
        options.victim_size, options.claims,
    )  # fmt: skip
    result = uvloop.run(
        measure(
            options.kubeconfig,
            workload,
            options.pause,
            limit=options.limit,
            server=options.server,
        )
    )
    print(json.dumps(result))
    return 1 if result["missing"] else 0


if __name__ == "__main__":
    sys.exit(main())
