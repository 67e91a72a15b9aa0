"""One queue for several schedulers: who is whose, and by which policy it is placed."""

from __future__ import annotations

from phalanx.api.gates import DEFAULT as GATES
from phalanx.api.gates import gated
from phalanx.scheduler.backoff import PATIENCE, BackOff
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Impossible, Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.events import Event
from phalanx.scheduler.queueing.queue import Queue
from phalanx.scheduler.settings.profiles import DEFAULT_PROFILES, by_gates
from tests.scheduler.builders import cluster, entity, gang, key, node, pod
from tests.scheduler.configurations import configured

PACKING = {
    "schedulerName": "packer",
    "pluginConfig": [
        {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}
    ],
}
BOTH = configured({"schedulerName": "default-scheduler"}, PACKING).profiles


def queue(*names: str, back_off: BackOff = BOTH.back_off) -> Queue:
    return Queue(*(names or BOTH.policies), back_off=back_off)


def popped(one: Queue, now: float = 0.0) -> Entity:
    found = one.pop(now)
    assert found is not None
    return found


def test_a_pod_is_placed_by_the_policy_of_the_scheduler_that_it_names() -> None:
    snapshot = cluster([node("a"), node("b")], [pod("q", on="b", cpu="1", memory="2Gi")]).snapshot()
    where = {}
    for name in ("default-scheduler", "packer"):
        one = entity(None, [pod("p", scheduler=name, cpu="1", memory="2Gi")])
        decision = decide(one, snapshot, BOTH.policy(one))
        assert isinstance(decision, Placed)
        where[name] = decision.bindings[0].node
    assert where == {"default-scheduler": "a", "packer": "b"}
    assert len(snapshot.views) == 2


def test_the_pods_of_all_profiles_wait_in_one_queue() -> None:
    one = queue()
    one.pod(pod("a", scheduler="packer"), 0.0)
    one.pod(pod("b", priority=1), 0.0)
    one.pod(pod("c", scheduler="somebody-else"), 0.0)
    assert [popped(one).key.name for _ in range(2)] == ["b", "a"]
    assert one.pop(0.0) is None


def test_a_gang_whose_pods_name_two_profiles_is_impossible() -> None:
    one = queue()
    one.group(gang("g", 2), 0.0)
    one.pod(pod("a", "g", scheduler="packer"), 0.0)
    one.pod(pod("b", "g"), 0.0)
    mixed = popped(one)
    assert len(mixed.members) == 2
    assert isinstance(
        decide(mixed, cluster([node("n")]).snapshot(), BOTH.policy(mixed)), Impossible
    )


def test_a_queue_without_names_is_that_of_the_usual_scheduler() -> None:
    one = Queue()
    one.pod(pod("a", scheduler="packer"), 0.0)
    one.pod(pod("b"), 0.0)
    assert popped(one).key == key("b")
    assert one.pop(0.0) is None


def test_gates_say_whether_groups_count() -> None:
    assert by_gates(GATES) == DEFAULT_PROFILES
    loose = by_gates(gated({"GangScheduling": False}), BOTH)
    assert not loose.groups
    assert loose.policies is BOTH.policies


# ---- pauses --------------------------------------------------------------------------------------


def refused(one: Queue, now: float) -> Entity:
    """The next entity, after it was refused for want of a node."""
    tried = popped(one, now)
    one.done(tried, Waiting(None, (), 1, 0, 0, 0, frozenset({Event.NODE_ADDED})), now)
    return tried


def test_the_pauses_are_those_that_the_queue_was_given() -> None:
    one = queue(back_off=BackOff(3, 4))
    one.pod(pod("p"), 0.0)
    refused(one, 0.0)
    assert one.next_time() == 3.0
    refused(one, 3.0)
    assert one.next_time() == 7.0


def test_without_pauses_what_was_refused_waits_for_its_cure() -> None:
    one = queue(back_off=BackOff(1, 0))
    one.pod(pod("p"), 0.0)
    refused(one, 0.0)
    assert one.pop(0.0) is None
    one.wake(Event.NODE_ADDED, 1.0)
    refused(one, 1.0)
    assert one.next_time() == 1.0 + PATIENCE


def test_without_pauses_what_could_not_be_bound_is_tried_again_at_once() -> None:
    one = queue(back_off=BackOff(1, 0))
    one.pod(pod("p"), 0.0)
    tried = popped(one)
    decision = decide(tried, cluster([node("n")]).snapshot(), BOTH.policy(tried))
    assert isinstance(decision, Placed)
    one.done(tried, decision, 0.0)
    one.returned(decision.bindings, 0.0)
    assert popped(one).key == key("p")
