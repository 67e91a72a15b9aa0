"""What groups and pods say at rest: the truth passes, each sort of untruth is found."""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.api.meta import Condition
from phalanx.api.scheduling import (
    DEGRADED,
    INITIALLY_SCHEDULED,
    SCHEDULED,
    PodGroup,
    PodGroupStatus,
)
from phalanx.client.answers import Listing
from phalanx.scheduler.decision import Decision, Refusal, Refused, Waiting
from phalanx.scheduler.queueing.queue import Queue
from phalanx.sim.faults.words import untrue
from phalanx.sim.tail import Tail
from phalanx.store.memory import MemoryStore
from tests.scheduler.builders import gang, key, pod

PLACED = (Condition(INITIALLY_SCHEDULED, "True"), Condition(SCHEDULED, "True"))
FULL = Refusal(1, (("Insufficient cpu", 1),))


def saying(group: PodGroup, *said: Condition, placed: int = 0, pending: int = 0) -> PodGroup:
    status = PodGroupStatus(conditions=said, scheduled_pods=placed, pending_pods=pending)
    return replace(group, status=status)


def told(one: Pod, message: str, promise: str = "") -> Pod:
    said = (Condition("PodScheduled", "False", "Unschedulable", message),)
    return replace(one, status=replace(one.status, conditions=said, nominated_node_name=promise))


def found(*things: Pod | PodGroup, decision: Decision | None = None) -> list[str]:
    tail, queue = Tail(MemoryStore()), Queue()
    groups = [thing for thing in things if isinstance(thing, PodGroup)]
    pods = [thing for thing in things if isinstance(thing, Pod)]
    tail.groups.replace(Listing(groups, 1))
    tail.pods.replace(Listing(pods, 1))
    for group in groups:
        queue.group(group, 0.0)
    for one in pods:
        queue.pod(one, 0.0)
    return list(untrue(queue, lambda id_: decision, tail))


def refused(name: str) -> Waiting:
    return Waiting(None, (Refused(key(name), f"uid-{name}", FULL),), 1, 0, 0, 0, frozenset())


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
    said = Condition(SCHEDULED, "False", "NotReadyForScheduling", why)
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
