"""Steady state of statuses: correct ones pass, each kind of wrong one is found."""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.api.meta import Condition
from phalanx.api.scheduling import (
    DEGRADED,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_SCHEDULED,
    PodGroup,
    PodGroupStatus,
)
from phalanx.client.protocol import Listing
from phalanx.scheduler.decision import Decision, Refusal, UnplacedPod, Waiting
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from phalanx.store.memory import MemoryStore
from tests.scheduler.builders import gang, key, pod
from tools.faults.model import StoreLogReader
from tools.faults.steady_state import check_statuses

PLACED = (Condition(POD_GROUP_INITIALLY_SCHEDULED, "True"), Condition(POD_GROUP_SCHEDULED, "True"))
FULL = Refusal(1, (("Insufficient cpu", 1),))


def with_status(
    group: PodGroup, *conditions: Condition, placed: int = 0, pending: int = 0
) -> PodGroup:
    status = PodGroupStatus(conditions=conditions, scheduled_pods=placed, pending_pods=pending)
    return replace(group, status=status)


def with_rejection(member: Pod, message: str, nominated_node: str = "") -> Pod:
    conditions = (Condition("PodScheduled", "False", "Unschedulable", message),)
    return replace(
        member,
        status=replace(member.status, conditions=conditions, nominated_node_name=nominated_node),
    )


def status_problems(*objects: Pod | PodGroup, decision: Decision | None = None) -> list[str]:
    store_log, queue = StoreLogReader(MemoryStore()), SchedulingQueue()
    groups = [obj for obj in objects if isinstance(obj, PodGroup)]
    pods = [obj for obj in objects if isinstance(obj, Pod)]
    store_log.groups.replace(Listing(groups, 1))
    store_log.pods.replace(Listing(pods, 1))
    for group in groups:
        queue.observe_group(group, 0.0)
    for member in pods:
        queue.observe_pod(member, 0.0)
    return list(check_statuses(queue, lambda id_: decision, store_log))


def rejection(name: str) -> Waiting:
    return Waiting(None, (UnplacedPod(key(name), f"uid-{name}", FULL),), 1, 0, 0, 0, frozenset())


def members(count: int, on: str = "n") -> list[Pod]:
    return [pod(f"m{i}", "g", on=on) for i in range(count)]


def test_placed_gang_with_conditions_is_accepted() -> None:
    assert status_problems(with_status(gang("g", 2), *PLACED, placed=2), *members(2)) == []


def test_placed_gang_without_conditions_is_found() -> None:
    assert status_problems(with_status(gang("g", 2), placed=2), *members(2)) == [
        "group default/g is placed, but says nothing"
    ]


def test_wrong_pod_counts_are_found() -> None:
    (problem,) = status_problems(
        with_status(gang("g", 2), *PLACED, placed=1, pending=1), *members(2)
    )
    assert problem == (
        "group default/g counts (1, 1, 0, 0) (placed, pending, succeeded, failed), not (2, 0, 0, 0)"
    )


def test_degraded_gang_without_the_condition_is_found() -> None:
    assert status_problems(with_status(gang("g", 2), *PLACED, placed=1), *members(1)) == [
        "group default/g has 1 of 2, but says of Degraded nothing"
    ]
    lost = Condition(DEGRADED, "True")
    assert status_problems(with_status(gang("g", 2), *PLACED, lost, placed=1), *members(1)) == []


def test_gang_that_waits_for_members_reports_how_many() -> None:
    message = "waiting for 2 members, 1 is there"
    waiting = [with_rejection(member, message) for member in members(1, on="")]
    conditions = Condition(POD_GROUP_SCHEDULED, "False", "NotReadyForScheduling", message)
    assert status_problems(with_status(gang("g", 2), conditions, pending=1), *waiting) == []
    stale = replace(conditions, message="waiting for 3 members, 1 is there")
    assert status_problems(with_status(gang("g", 2), stale, pending=1), *waiting) == [
        f"group default/g says False: {stale.message}, but should say {message}"
    ]


def test_waiting_pod_reports_the_reason() -> None:
    message = "0/1 nodes are available: 1 Insufficient cpu."
    assert status_problems(with_rejection(pod("p"), message), decision=rejection("p")) == []
    assert status_problems(pod("p"), decision=rejection("p")) == [
        "pod default/p waits, but says nothing"
    ]
    assert status_problems(with_rejection(pod("p"), "no idea"), decision=rejection("p")) == [
        f"pod default/p says False: no idea, but should say {message}"
    ]


def test_unschedulable_pod_with_a_nominated_node_is_found() -> None:
    message = "0/1 nodes are available: 1 Insufficient cpu."
    assert status_problems(
        with_rejection(pod("p"), message, nominated_node="n"), decision=rejection("p")
    ) == ["pod default/p has the nominated node 'n', but should have ''"]
