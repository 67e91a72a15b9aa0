"""Nominated pods use resources, but affinity and spread must hold without them too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from phalanx.api.core import Affinity, Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import ClusterEvent, Decision, Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.plugins.inter_pod_affinity import AFFINITY_UNMET, ANTI_AFFINITY_VIOLATED
from phalanx.scheduler.plugins.pod_topology_spread import SPREAD_VIOLATED
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.preemption.evaluator import NOT_HELPFUL
from tests.scheduler.builders import (
    alone,
    cluster,
    composite,
    entity,
    gang,
    node,
    nominated,
    pod,
    tree,
)
from tests.scheduler.scheduler_loop import SchedulerLoop

WEB = {"app": "web"}
TO_WEB = PodAffinity((PodAffinityTerm("zone", {"matchLabels": WEB}),))
NEAR, APART = Affinity(pod_affinity=TO_WEB), Affinity(pod_anti_affinity=TO_WEB)
EVEN = (TopologySpreadConstraint("zone", label_selector={"matchLabels": WEB}),)
NODES = [node(name, {"zone": name}) for name in "ab"]


def web(on: str, *, priority: int = 0) -> Pod:
    return pod(f"web-{on}", on=on, labels=WEB, cpu="2", priority=priority)


def decide_with_pods(one: Entity, pods: Iterable[Pod]) -> Decision:
    return decide(one, cluster(NODES, pods).snapshot(), DEFAULT_POLICY)


def placement(decision: Decision) -> dict[str, str]:
    assert isinstance(decision, Placed), decision
    return {key.name: on for key, _, on in decision.bindings}


def reasons(decision: Decision) -> dict[str, int]:
    assert isinstance(decision, Waiting), decision
    assert ClusterEvent.POD_PLACED in decision.wakes_on
    (counts,) = {one.refusal.counts for one in decision.pods if one.refusal}
    return dict(counts)


def test_affinity_to_a_nominated_pod_waits_until_it_is_bound() -> None:
    one = alone(pod("p", affinity=NEAR))
    assert reasons(decide_with_pods(one, [nominated(web("a"), "a")])) == {AFFINITY_UNMET: 2}
    assert placement(decide_with_pods(one, [web("a")])) == {"p": "a"}


def test_a_refused_pod_wakes_when_the_nominated_pod_is_bound() -> None:
    victim = pod("low", on="a", cpu="4", deleting=True)
    nominee = nominated(pod("web", labels=WEB, cpu="4", priority=9), "a")
    loop = SchedulerLoop(NODES[0], victim, nominee, pod("p", affinity=NEAR))
    assert loop.bound == {"low": "a"}
    loop.delete("low")
    loop.advance(60)
    assert loop.bound == {"web": "a", "p": "a"}


def test_nominated_pods_do_not_make_a_spread_more_even() -> None:
    one, full = alone(pod("p", labels=WEB, cpu="1", spreads=EVEN)), pod("full", on="b", cpu="4")
    waiting = decide_with_pods(one, [web("a"), full, nominated(web("b"), "b")])
    assert reasons(waiting) == {SPREAD_VIOLATED: 1, "Insufficient cpu": 1}
    assert placement(decide_with_pods(one, [web("a"), full, web("b")])) == {"p": "a"}


def test_anti_affinity_of_nominated_pods_rejects_other_pods() -> None:
    nominee = nominated(web("a"), "a")
    assert placement(decide_with_pods(alone(pod("p", affinity=APART)), [nominee])) == {"p": "b"}
    both = [nominee, nominated(web("b"), "b")]
    assert reasons(decide_with_pods(alone(pod("p", affinity=APART)), both)) == {
        ANTI_AFFINITY_VIOLATED: 2
    }


def test_the_first_pod_with_self_affinity_is_placed_with_a_nominated_one() -> None:
    one = alone(pod("p", labels=WEB, affinity=NEAR, cpu="1"))
    assert placement(decide_with_pods(one, [nominated(web("b"), "b")])) == {"p": "b"}


def test_nominated_pods_of_lower_priority_do_not_count() -> None:
    one = alone(pod("p", affinity=APART, priority=1))
    assert placement(decide_with_pods(one, [nominated(web("a"), "a")])) == {"p": "a"}


@pytest.mark.parametrize("count", [1, 3])
def test_a_gang_with_affinity_to_a_nominated_pod_waits(count: int) -> None:
    one = entity(gang("g", count), [pod(f"m{n}", "g", affinity=NEAR) for n in range(count)])
    assert reasons(decide_with_pods(one, [nominated(web("a"), "a")])) == {AFFINITY_UNMET: 2}
    assert set(placement(decide_with_pods(one, [web("a")])).values()) == {"a"}


def test_the_exact_search_does_not_rely_on_nominated_pods() -> None:
    pytest.importorskip("highspy", reason="the extra phalanx[exact] is not installed")
    members = [pod("m0", "g", affinity=NEAR, cpu="1"), pod("m1", "g", spreads=EVEN, cpu="2")]
    one = entity(gang("g", 2), members)
    snapshot = cluster(NODES, [nominated(web("b"), "b")]).snapshot()
    decision = decide(one, snapshot, DEFAULT_POLICY, solver=HighsSolver())
    assert isinstance(decision, Waiting)
    assert decision.undecided == ""


def test_affinity_may_rely_on_members_of_the_same_gang() -> None:
    pair = [pod("m0", "g", labels=WEB, cpu="1"), pod("m1", "g", affinity=NEAR, cpu="1")]
    found = placement(decide_with_pods(entity(gang("g", 2), pair), [nominated(web("a"), "a")]))
    assert found["m0"] == found["m1"]


def test_a_tree_with_affinity_to_a_nominated_pod_waits() -> None:
    first = entity(gang("x", 1, parent="t"), [pod("x0", "x", cpu="1")])
    with_affinity = entity(gang("y", 1, parent="t"), [pod("y0", "y", affinity=NEAR)])
    one = tree(composite("t", 2), first, with_affinity)
    decision = decide_with_pods(one, [nominated(web("a"), "a")])
    assert isinstance(decision, Waiting)
    assert ClusterEvent.POD_PLACED in decision.wakes_on
    assert placement(decide_with_pods(one, [web("a")]))["y0"] == "a"
    labelled = entity(gang("x", 1, parent="t"), [pod("x0", "x", labels=WEB, cpu="1")])
    found = placement(
        decide_with_pods(
            tree(composite("t", 2), labelled, with_affinity), [nominated(web("a"), "a")]
        )
    )
    assert found["x0"] == found["y0"]


def test_no_pod_is_evicted_where_affinity_would_rely_on_a_nominated_pod() -> None:
    one = alone(pod("p", affinity=NEAR, cpu="2", priority=5))
    low = [pod(f"low-{name}", on=name, cpu="2") for name in "ab"]
    decision = decide_with_pods(one, [nominated(web("a", priority=9), "a"), *low])
    assert isinstance(decision, Waiting)
    assert (decision.preemption, decision.nominated) == (NOT_HELPFUL, ())
