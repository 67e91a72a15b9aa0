"""What waiting gangs cost the API server: writes, attempts and events, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from phalanx.api.kinds import EVENT, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS
from phalanx.scheduler.decision import Decision
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.scheduler.search.solver import Steps
from tests.builders import gang, in_virtual_time, node, pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes

#: The size of the quick tests, and that of the targets.
SMALL = pytest.param(10, 30, 4)
LARGE = pytest.param(200, 300, 8, marks=pytest.mark.slow)
#: CPUs of a node; each running pod requests one of them, each waiting pod all.
CPUS = 8


async def fill(c: Cluster, nodes: int) -> None:
    """Fill every node with bound pods."""
    for n in range(nodes):
        await c.add_node(node(f"n{n:03}", cpu=str(CPUS)))
        await c.create(*(pod(f"run-{n}-{i}", cpu="1", on=f"n{n:03}") for i in range(CPUS)))


async def wait_with_gangs(c: Cluster, gangs: int, size: int) -> None:
    """Create gangs that do not fit, and wait until they are reported."""
    for n in range(gangs):
        await c.create(*gang(f"wait-{n:03}", size, cpu=str(CPUS)))
    await asyncio.sleep(30)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The attempts of each entity."""
    counts: Counter[str] = Counter()
    original = SchedulerState.cycle

    def cycle(state: SchedulerState, entity: Entity) -> Steps[Decision]:
        counts[entity.key.name] += 1
        return original(state, entity)

    monkeypatch.setattr(SchedulerState, "cycle", cycle)
    return counts


@pytest.mark.parametrize(("nodes", "gangs", "size"), [SMALL, LARGE])
@in_virtual_time
async def test_waiting_gangs_cost_nothing_at_rest(
    attempts: Counter[str], nodes: int, gangs: int, size: int
) -> None:
    async with cluster(without=["nodes"]) as c:
        await fill(c, nodes)
        await wait_with_gangs(c, gangs, size)
        attempts.clear()
        before = c.store.revision
        await asyncio.sleep(600)
        assert c.store.revision == before
        assert not attempts


@pytest.mark.parametrize(("nodes", "gangs", "size"), [SMALL, LARGE])
@in_virtual_time
async def test_ten_deleted_pods_cause_few_writes(
    attempts: Counter[str], nodes: int, gangs: int, size: int
) -> None:
    async with cluster(without=["nodes"]) as c:
        await fill(c, nodes)
        await wait_with_gangs(c, gangs, size)
        attempts.clear()
        before = c.store.revision
        for n in range(10):
            await c.client.delete(POD, Key("default", f"run-{n}-0"), grace=0)
            await asyncio.sleep(1)
        await asyncio.sleep(60)
        assert c.store.revision - before <= 300
        assert sum(attempts.values()) <= 10
        assert set(attempts) <= {"wait-000"}


@in_virtual_time
async def test_new_pod_is_decided_at_once_beside_waiting_gangs(attempts: Counter[str]) -> None:
    async with cluster(without=["nodes"]) as c:
        await fill(c, 10)
        await wait_with_gangs(c, 30, 4)
        await c.client.delete(POD, Key("default", "run-3-0"), grace=0)
        attempts.clear()
        await c.create(pod("new", cpu="1"))
        assert await c.until_placed("new") < 0.1
        assert attempts["new"] == 1
        assert sum(attempts.values()) <= 2


@in_virtual_time
async def test_changed_numbers_are_written_once_in_ten_seconds() -> None:
    async with cluster(without=["nodes"]) as c:
        await c.add_node(node("n0", cpu="1"))
        await c.create(*gang("big", 9, cpu="1"))
        await asyncio.sleep(30)
        writes = []
        for n in range(1, 6):
            before = c.store.revision
            await c.add_node(node(f"n{n}", cpu="1"))
            created = c.store.revision
            await asyncio.sleep(2)
            writes.append(c.store.revision - max(created, before + 1))
        # The first change of numbers is written at once: the group, and the pods whose message has
        # changed. The others wait.
        assert writes[0] > 0
        assert writes[1:] == [0] * 4
        await asyncio.sleep(20)
        condition = await c.group_condition("big", "PodGroupScheduled")
        assert condition is not None
        assert condition.message.startswith("minCount (9) cannot be satisfied: 6 scheduled")


@in_virtual_time
async def test_group_has_one_event_per_reason_and_a_pod_its_own() -> None:
    async with cluster(without=["nodes"]) as c:
        await c.add_node(node("n0", cpu="1"))
        await c.create(*gang("big", 4, cpu="1"), pod("alone", cpu="4"))
        await asyncio.sleep(30)
        for n in range(1, 3):
            await c.add_node(node(f"n{n}", cpu="1"))
            await asyncio.sleep(30)
        found = [e for e in (await c.client.list(EVENT)).items if is_failure(e)]
        regarding = Counter(
            (e["involvedObject"]["kind"], e["involvedObject"]["name"]) for e in found
        )
        assert regarding[("PodGroup", "big")] == 1
        assert regarding[("Pod", "alone")] >= 1
        assert set(regarding) == {("PodGroup", "big"), ("Pod", "alone")}


@in_virtual_time
async def test_next_equal_gang_is_counted_as_woken_by_the_placed_one() -> None:
    async with cluster(without=["nodes"]) as c:
        await fill(c, 2)
        await wait_with_gangs(c, 3, 1)
        for i in range(CPUS):
            await c.client.delete(POD, Key("default", f"run-1-{i}"), grace=0)
        await c.until_placed("wait-000-0")
        woken = 'queue="active",event="EqualEntityScheduled"'
        assert woken in c.plane.server.metrics.render()


def is_failure(event: Object) -> bool:
    return bool(event["reason"] == "FailedScheduling")


@pytest.mark.parametrize(
    ("nodes", "jobs", "limit"),
    [(12, 4, 80), pytest.param(1_000, 280, 5_000, marks=pytest.mark.slow)],
)
@in_virtual_time
async def test_waiting_jobs_leave_few_events(nodes: int, jobs: int, limit: int) -> None:
    async with cluster(nodes=simulated_nodes(nodes, cpu="4")) as c:
        for n in range(jobs):
            await c.create(gang_job(f"job-{n}", pods=4, seconds=240, cpu="4"))
        await asyncio.sleep(900)
        found = (await c.client.list(EVENT)).items
        assert len(found) < limit
        assert len(await c.pods()) == 4 * jobs


def gang_job(name: str, *, pods: int, seconds: int, cpu: str) -> Object:
    """A gang Job whose pods run for so many seconds."""
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}
    template = {
        "metadata": {"annotations": {RUN_SECONDS: str(seconds)}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "gangPolicy": {"policy": "JobAsGang"},
            "template": template,
        },
    }
