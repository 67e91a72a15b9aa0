"""Several profiles share one queue; each places its pods by its own policy."""

from __future__ import annotations

from phalanx.api.feature_gates import DEFAULT_GATES as GATES
from phalanx.api.feature_gates import resolve_gates
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import ClusterEvent, Impossible, Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.node_scores import NODE_SCORES
from phalanx.scheduler.policy import (
    DEFAULT_PROFILES,
    MAX_UNSCHEDULABLE_SECONDS,
    BackOff,
    apply_feature_gates,
)
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.builders import cluster, entity, gang, key, node, pod
from tests.scheduler.configurations import load_configuration

PACKING = {
    "schedulerName": "packer",
    "pluginConfig": [
        {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}
    ],
}
BOTH = load_configuration({"schedulerName": "default-scheduler"}, PACKING).profiles


def queue(*names: str, back_off: BackOff = BOTH.back_off) -> SchedulingQueue:
    return SchedulingQueue(*(names or BOTH.policies), back_off=back_off)


def pop_entity(one: SchedulingQueue, now: float = 0.0) -> Entity:
    found = one.pop(now)
    assert found is not None
    return found


def test_pod_is_placed_by_the_policy_of_its_scheduler_name() -> None:
    snapshot = cluster([node("a"), node("b")], [pod("q", on="b", cpu="1", memory="2Gi")]).snapshot()
    where = {}
    for name in ("default-scheduler", "packer"):
        one = entity(None, [pod("p", scheduler=name, cpu="1", memory="2Gi")])
        decision = decide(one, snapshot, BOTH.policy(one))
        assert isinstance(decision, Placed)
        where[name] = decision.bindings[0].node
    assert where == {"default-scheduler": "a", "packer": "b"}
    assert len(NODE_SCORES.of(snapshot)) == 2


def test_pods_of_all_profiles_wait_in_one_queue() -> None:
    one = queue()
    one.observe_pod(pod("a", scheduler="packer"), 0.0)
    one.observe_pod(pod("b", priority=1), 0.0)
    one.observe_pod(pod("c", scheduler="other-scheduler"), 0.0)
    assert [pop_entity(one).key.name for _ in range(2)] == ["b", "a"]
    assert one.pop(0.0) is None


def test_gang_whose_pods_name_two_profiles_is_impossible() -> None:
    one = queue()
    one.observe_group(gang("g", 2), 0.0)
    one.observe_pod(pod("a", "g", scheduler="packer"), 0.0)
    one.observe_pod(pod("b", "g"), 0.0)
    mixed = pop_entity(one)
    assert len(mixed.members) == 2
    assert isinstance(
        decide(mixed, cluster([node("n")]).snapshot(), BOTH.policy(mixed)), Impossible
    )


def test_queue_without_names_serves_the_default_scheduler() -> None:
    one = SchedulingQueue()
    one.observe_pod(pod("a", scheduler="packer"), 0.0)
    one.observe_pod(pod("b"), 0.0)
    assert pop_entity(one).key == key("b")
    assert one.pop(0.0) is None


def test_feature_gate_disables_groups() -> None:
    assert apply_feature_gates(GATES) == DEFAULT_PROFILES
    loose = apply_feature_gates(resolve_gates({"GangScheduling": False}), BOTH)
    assert not loose.groups
    assert loose.policies is BOTH.policies


# ---- back-off ------------------------------------------------------------------------------------


def pop_and_refuse(one: SchedulingQueue, now: float) -> Entity:
    """Pop the next entity and report that no node takes it."""
    tried = pop_entity(one, now)
    one.done(tried, Waiting(None, (), 1, 0, 0, 0, frozenset({ClusterEvent.NODE_ADDED})), now)
    return tried


def test_queue_uses_the_configured_back_off() -> None:
    one = queue(back_off=BackOff(3, 4))
    one.observe_pod(pod("p"), 0.0)
    pop_and_refuse(one, 0.0)
    assert one.next_backoff_end() == 3.0
    pop_and_refuse(one, 3.0)
    assert one.next_backoff_end() == 7.0


def test_without_back_off_a_refused_pod_waits_for_an_event() -> None:
    one = queue(back_off=BackOff(1, 0))
    one.observe_pod(pod("p"), 0.0)
    pop_and_refuse(one, 0.0)
    assert one.pop(0.0) is None
    one.wake(ClusterDelta(ClusterEvent.NODE_ADDED), 1.0)
    pop_and_refuse(one, 1.0)
    assert one.next_backoff_end() == 1.0 + MAX_UNSCHEDULABLE_SECONDS


def test_without_back_off_a_failed_binding_is_retried_at_once() -> None:
    one = queue(back_off=BackOff(1, 0))
    one.observe_pod(pod("p"), 0.0)
    tried = pop_entity(one)
    decision = decide(tried, cluster([node("n")]).snapshot(), BOTH.policy(tried))
    assert isinstance(decision, Placed)
    one.done(tried, decision, 0.0)
    one.return_unbound(decision.bindings, 0.0)
    assert pop_entity(one).key == key("p")
