"""What groups and pods say at rest: the truth passes, each sort of untruth is found."""

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


def saying(group: PodGroup, *said: Condition, placed: int = 0, pending: int = 0) -> PodGroup:
    status = PodGroupStatus(conditions=said, scheduled_pods=placed, pending_pods=pending)
    return replace(group, status=status)


def told(one: Pod, message: str, promise: str = "") -> Pod:
    said = (Condition("PodScheduled", "False", "Unschedulable", message),)
    return replace(one, status=replace(one.status, conditions=said, nominated_node_name=promise))


def found(*things: Pod | PodGroup, decision: Decision | None = None) -> list[str]:
    tail, queue = StoreLogReader(MemoryStore()), SchedulingQueue()
    groups = [thing for thing in things if isinstance(thing, PodGroup)]
    pods = [thing for thing in things if isinstance(thing, Pod)]
    tail.groups.replace(Listing(groups, 1))
    tail.pods.replace(Listing(pods, 1))
    for group in groups:
        queue.observe_group(group, 0.0)
    for one in pods:
        queue.observe_pod(one, 0.0)
    return list(check_statuses(queue, lambda id_: decision, tail))


def refused(name: str) -> Waiting:
    return Waiting(None, (UnplacedPod(key(name), f"uid-{name}", FULL),), 1, 0, 0, 0, frozenset())


def members(count: int, on: str = "n") -> list[Pod]:
    return [pod(f"m{i}", "g", on=on) for i in range(count)]


def test_a_gang_that_is_placed_and_says_so_is_well() -> None:
    assert found(saying(gang("g", 2), *PLACED, placed=2), *members(2)) == []


def test_a_gang_that_is_placed_and_does_not_say_so_is_found() -> None:
    assert found(saying(gang("g", 2), placed=2), *members(2)) == [
        "group default/g is placed, but says nothing"
    ]


def test_members_that_are_counted_wrongly_are_found() -> None:
    (sentence,) = found(saying(gang("g", 2), *PLACED, placed=1, pending=1), *members(2))
    assert sentence == (
        "group default/g counts (1, 1, 0, 0) (placed, pending, succeeded, failed), not (2, 0, 0, 0)"
    )


def test_a_gang_that_has_lost_members_and_does_not_say_so_is_found() -> None:
    assert found(saying(gang("g", 2), *PLACED, placed=1), *members(1)) == [
        "group default/g has 1 of 2, but says of Degraded nothing"
    ]
    lost = Condition(DEGRADED, "True")
    assert found(saying(gang("g", 2), *PLACED, lost, placed=1), *members(1)) == []


def test_a_gang_that_waits_for_members_says_how_many() -> None:
    why = "waiting for 2 members, 1 is there"
    waiting = [told(one, why) for one in members(1, on="")]
    said = Condition(POD_GROUP_SCHEDULED, "False", "NotReadyForScheduling", why)
    assert found(saying(gang("g", 2), said, pending=1), *waiting) == []
    stale = replace(said, message="waiting for 3 members, 1 is there")
    assert found(saying(gang("g", 2), stale, pending=1), *waiting) == [
        f"group default/g says False: {stale.message}, but should say {why}"
    ]


def test_a_pod_that_waits_says_why() -> None:
    why = "0/1 nodes are available: 1 Insufficient cpu."
    assert found(told(pod("p"), why), decision=refused("p")) == []
    assert found(pod("p"), decision=refused("p")) == ["pod default/p waits, but says nothing"]
    assert found(told(pod("p"), "no idea"), decision=refused("p")) == [
        f"pod default/p says False: no idea, but should say {why}"
    ]


def test_a_pod_that_was_refused_is_promised_nothing() -> None:
    why = "0/1 nodes are available: 1 Insufficient cpu."
    assert found(told(pod("p"), why, promise="n"), decision=refused("p")) == [
        "pod default/p was refused and still has a promise of node n"
    ]
