"""A full cluster: what waiting gangs cost while they cannot run.

Two measurements take the pure core alone, in CPU time: a pod ends, or a pod is created, while many
gangs wait. The others count what reaches the API server of a whole control plane in virtual time:
writes and events, which do not depend on the machine.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator

from benchmarks import api_calls as calls
from benchmarks.decisions import frozen_gc
from benchmarks.environment import BenchmarkEnvironment, Result
from benchmarks.guards import EPOCH, Api
from benchmarks.http_client import Call
from phalanx.api.core import (
    Container,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGroup,
)
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.scheduling import GangPolicy, PodGroup, PodGroupSpec, SchedulingPolicy
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS
from phalanx.randomness import SeededRandom
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs, ReservationMode
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles, SchedulerPolicy
from phalanx.scheduler.queue.decision_log import NodeObserved, PodGroupObserved, PodObserved
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.sim.virtual_time import run_virtual
from phalanx.store.memory import MemoryStore

#: CPUs of a node; a waiting pod requests all of them.
CPUS = 4
MEMBERS = 8
#: When the first gang has waited for long enough to get a reservation.
RESERVED_AT = 61.0
ENDED_PODS, REST_SECONDS = 10, 60
JOB_PODS, JOB_SECONDS, OBSERVED_SECONDS = 6, 240, 900
#: Reservations of the mode Conservative.
DEPTH = 32
CONSERVATIVE_PROFILES = Profiles(
    {
        "default-scheduler": SchedulerPolicy(
            reservation=ReservationArgs(mode=ReservationMode.CONSERVATIVE, depth=DEPTH)
        )
    }
)


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure the scheduler state, then a control plane in virtual time."""
    nodes, gangs = setting.size(5_000), setting.size(1_000)
    with frozen_gc():
        state = _crowded_state(nodes, gangs)
        ended = max(_end_pod(state, n) for n in range(ENDED_PODS))
        created = max(_create_pod(state, n) for n in range(ENDED_PODS))
        reserved = _end_pods_beside_reservations(nodes, gangs, DEFAULT_PROFILES)
        conservative = _end_pods_beside_reservations(nodes, gangs, CONSERVATIVE_PROFILES)
    situation = f"{gangs:,} gangs wait"
    yield Result(f"one pod ends, {situation}, {nodes:,} nodes", ended, "ms", 50)
    yield Result(f"the same with a reservation, {situation}", reserved, "ms", 50)
    yield Result(f"the same with {DEPTH} reservations, {situation}", conservative, "ms", 100)
    yield Result(f"decide a new pod, {situation}", created, "ms", 100)
    waiting = setting.size(300)
    deleted, rest = run_virtual(lambda: _count_writes(setting.size(200), waiting))
    situation = f"{waiting} gangs of {MEMBERS} wait"
    yield Result(f"{ENDED_PODS} pods deleted, {situation}", deleted, "writes", 300)
    yield Result(f"at rest, {situation}", rest / REST_SECONDS, "writes/s", 1)
    nodes, jobs = setting.size(1_000), setting.size(280)
    events = run_virtual(lambda: _count_job_events(nodes, jobs))
    title = f"{jobs} Jobs of {JOB_PODS} pods on {nodes:,} nodes, 15 minutes"
    yield Result(title, events, "events", 5_000)


# ---- the scheduler state alone -------------------------------------------------------------------


def _crowded_state(
    nodes: int,
    gangs: int,
    *,
    has_deadlines: bool = False,
    profiles: Profiles = DEFAULT_PROFILES,
) -> SchedulerState:
    """Return a full cluster of ten pods per node on which equal gangs were refused.

    Running pods with deadlines let the first gang get a reservation with an expected start.
    """
    state = SchedulerState(profiles)
    for n in range(nodes):
        amounts: dict[str, str | int | float] = {"cpu": str(CPUS), "memory": "32Gi", "pods": "110"}
        node = Node(ObjectMeta(name=f"node-{n:05}"), status=NodeStatus(allocatable=amounts))
        state.observe(NodeObserved(0.0, node.metadata.name, node))
        for i in range(10):
            seconds = 3600 + (n * 10 + i) * 7 % 7200 if has_deadlines else None
            name = f"run-{n}-{i}"
            _observe(state, _pod(name, cpu="400m", on=node.metadata.name, seconds=seconds))
    for n in range(gangs):
        meta = _meta(f"gang-{n}")
        spec = PodGroupSpec(scheduling_policy=SchedulingPolicy(gang=GangPolicy(MEMBERS)))
        state.observe(PodGroupObserved(0.0, meta.key, PodGroup(meta, spec)))
        for i in range(MEMBERS):
            _observe(state, _pod(f"gang-{n}-{i}", f"gang-{n}", cpu=str(CPUS)))
    _attempt_all(state)
    return state


def _end_pods_beside_reservations(nodes: int, gangs: int, profiles: Profiles) -> float:
    """End pods while gangs have reservations; return the most milliseconds."""
    state = _crowded_state(nodes, gangs, has_deadlines=True, profiles=profiles)
    _attempt_all(state, RESERVED_AT)
    assert state.reservations.current
    return max(_end_pod(state, n, RESERVED_AT + n) for n in range(ENDED_PODS))


def _end_pod(state: SchedulerState, number: int, now: float = 0.0) -> float:
    """End a pod and attempt every entity that this wakes; return milliseconds."""
    begin = time.process_time()
    state.observe(PodObserved(now, Key("default", f"run-{number}-0"), None))
    _attempt_all(state, now)
    return (time.process_time() - begin) * 1000


def _create_pod(state: SchedulerState, number: int) -> float:
    """Create a pod of the same priority that fits, and decide about it; return milliseconds."""
    begin = time.process_time()
    _observe(state, _pod(f"new-{number}", cpu="400m"))
    assert _attempt_all(state) == [f"new-{number}"]
    return (time.process_time() - begin) * 1000


def _attempt_all(state: SchedulerState, now: float = 0.0) -> list[str]:
    """Attempt the active entities; return the names of those that were placed."""
    placed = []
    while entity := state.pop_after_planning(now):
        decision = state.decide(entity)
        state.commit(entity, decision, now)
        placed += [entity.key.name] * isinstance(decision, Placed)
    return placed


def _observe(state: SchedulerState, pod: Pod) -> None:
    state.observe(PodObserved(0.0, pod.metadata.key, pod))


def _meta(name: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace="default", uid=name)


def _pod(name: str, group: str = "", *, cpu: str, on: str = "", seconds: int | None = None) -> Pod:
    needs = ResourceRequirements(requests={"cpu": cpu, "memory": "100Mi"})
    spec = PodSpec(
        node_name=on,
        restart_policy="Always" if seconds is None else "Never",
        active_deadline_seconds=seconds,
        containers=(Container(name="main", image="pause", resources=needs),),
        scheduling_group=SchedulingGroup(pod_group_name=group) if group else None,
    )
    return Pod(_meta(name), spec, PodStatus(phase="Running" if on else "Pending"))


# ---- a control plane in virtual time -------------------------------------------------------------


async def _in_plane(
    config: ComponentConfig, work: Callable[[Api, MemoryStore], Awaitable[int]]
) -> int:
    store, clock = MemoryStore(), LoopClock(asyncio.get_running_loop(), EPOCH)
    plane = ControlPlane(store, clock, SeededRandom(1), config)
    async with plane.running():
        return await work(Api(plane.server), store)


async def _count_writes(nodes: int, gangs: int) -> tuple[int, int]:
    """Count the writes after pods were deleted, and those at rest."""
    rest = 0

    async def work(api: Api, store: MemoryStore) -> int:
        nonlocal rest
        for n in range(nodes):
            await api.send(calls.node(f"node-{n}"))
            await api.send(calls.remove_taints(f"node-{n}"))
            for i in range(CPUS):
                await api.send(calls.pod(f"run-{n}-{i}", cpu="1", on=f"node-{n}"))
        for n in range(gangs):
            await api.send(calls.pod_group(f"gang-{n}", MEMBERS))
            for i in range(MEMBERS):
                await api.send(calls.pod(f"gang-{n}-{i}", group=f"gang-{n}", cpu=str(CPUS)))
        await asyncio.sleep(REST_SECONDS)
        before = store.revision
        await asyncio.sleep(REST_SECONDS)
        rest, before = store.revision - before, store.revision
        for n in range(ENDED_PODS):
            await api.send(_delete_pod(f"run-{n}-0"))
            await asyncio.sleep(1)
        await asyncio.sleep(REST_SECONDS)
        return store.revision - before

    return await _in_plane(ComponentConfig(without=("nodes", "controllers")), work), rest


async def _count_job_events(nodes: int, jobs: int) -> int:
    """Count the events of gang Jobs that compete for the nodes; each member takes a whole node."""

    async def work(api: Api, store: MemoryStore) -> int:
        for n in range(jobs):
            await api.send(_gang_job(f"job-{n}"))
        await asyncio.sleep(OBSERVED_SECONDS)
        found = json.loads(await api.send(calls.get(calls.EVENTS)))
        return len(found["items"])

    capacity = {"cpu": str(CPUS), "memory": "32Gi", "pods": "110"}
    simulated = [SimulatedNode(f"node-{n}", capacity) for n in range(nodes)]
    return await _in_plane(ComponentConfig(simulated), work)


def _gang_job(name: str) -> Call:
    """Return the request that creates a gang Job whose pods run for a while on a node each."""
    method, path, body, kind = calls.job(name, gang=True, pods=JOB_PODS)
    job = json.loads(body)
    template = job["spec"]["template"]
    template["metadata"] = {"annotations": {RUN_SECONDS: str(JOB_SECONDS)}}
    template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(CPUS)
    return method, path, json.dumps(job).encode(), kind


def _delete_pod(name: str) -> Call:
    return "DELETE", f"{calls.PODS}/{name}?gracePeriodSeconds=0", b"", "application/json"
