"""The verifier itself: it accepts right decisions and finds each kind of wrong one."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.core import (
    Affinity,
    Node,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Taint,
    TopologySpreadConstraint,
)
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Binding, Decision, Placed, Refusal, UnplacedPod, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from tests.scheduler.builders import alone, basic, entity, gang, key, node, nominated, pod
from tests.scheduler.strategies import Situation, situations
from tests.scheduler.verifier import Verifier


def cluster(nodes: list[Node], pods: list[Pod], *groups: PodGroup) -> ClusterObjects:
    return ClusterObjects(nodes, groups, pods)


def violations_of(seen: ClusterObjects, one: Entity, decision: Decision | None = None) -> list[str]:
    """Verify a decision, or (None) the decision of the scheduler."""
    if decision is None:
        decision = decide(one, load_state(seen).cache.snapshot(), DEFAULT_POLICY)
    return Verifier().violations(seen, one, decision)


def placed(**nodes: str) -> Placed:
    bindings = [Binding(key(name), f"uid-{name}", on) for name, on in nodes.items()]
    return Placed(None, tuple(bindings))


@given(situations(), st.sets(st.integers(0, 3)))
def test_verifier_accepts_the_decisions_of_the_scheduler(
    situation: Situation, waiting: set[int]
) -> None:
    running = [
        nominated(one, one.occupied_node) if number in waiting and one.group is None else one
        for number, one in enumerate(situation.running)
    ]
    members = [member.pod for member in situation.entity.members]
    group = situation.entity.group
    groups = [group] if isinstance(group, PodGroup) else []
    mine = situation.entity.group is not None
    others = [p for p in running if mine and p.group == situation.entity.key]
    alive = tuple(p for p in others if not p.metadata.deletion_timestamp)
    seen = ClusterObjects(situation.nodes, groups, [*running, *members], (), situation.namespaces)
    one = replace(situation.entity, other_members=alive)
    if groups and len(members) + len(alive) < one.quorum:
        return
    assert violations_of(seen, one) == []


def test_verifier_finds_a_pod_on_a_node_that_rejects_it() -> None:
    tainted = node("n", taints=(Taint("a", "", "NoSchedule"),))
    one = pod("p", cpu="1")
    assert violations_of(cluster([tainted], [one]), alone(one), placed(p="n")) == [
        "default/p: default/p may not be on n: node(s) had untolerated taint(s)"
    ]
    assert violations_of(cluster([tainted], [one]), alone(one), placed(p="m")) == [
        "default/p: default/p may not be on m: no such node"
    ]


WEB: dict[str, object] = {"matchLabels": {"app": "web"}}


def test_verifier_finds_a_pod_whose_affinity_relies_on_a_nominated_pod() -> None:
    zones = [node(name, {"zone": name}) for name in "ab"]
    web = pod("web", on="a", labels={"app": "web"})
    near = PodAffinity((PodAffinityTerm("zone", WEB),))
    one = pod("p", affinity=Affinity(pod_affinity=near))
    expected = "default/p: default/p may not be on a: node(s) didn't match pod affinity rules"
    assert violations_of(cluster(zones, [web, one]), alone(one), placed(p="a")) == []
    seen = cluster(zones, [nominated(web, "a"), one])
    assert violations_of(seen, alone(one), placed(p="a")) == [expected]
    assert violations_of(seen, alone(one)) == []
    assert not Verifier().fits(seen, alone(one))


def test_verifier_finds_a_spread_that_is_even_only_with_nominated_pods() -> None:
    zones = [node(name, {"zone": name}) for name in "ab"]
    webs = [pod(f"web-{name}", on=name, labels={"app": "web"}) for name in "ab"]
    even = (TopologySpreadConstraint("zone", label_selector=WEB),)
    one = pod("p", labels={"app": "web"}, spreads=even)
    seen = cluster(zones, [webs[0], nominated(webs[1], "b"), one])
    (message,) = violations_of(seen, alone(one), placed(p="a"))
    assert "default/p may not be on a: node(s) didn't match pod topology spread" in message
    assert violations_of(seen, alone(one), placed(p="b")) == []
    away = cluster([zones[0], node("b", {"zone": "b"}, cordoned=True)], list(seen.pods))
    assert violations_of(away, alone(one)) == []


def test_verifier_finds_pods_that_do_not_fit_together() -> None:
    pair = [pod(f"m{i}", "g", cpu="3") for i in range(2)]
    seen = cluster([node("n")], pair, gang("g", 2))
    assert violations_of(seen, entity(gang("g", 2), pair), placed(m0="n", m1="n")) == [
        "default/g: default/m1 may not be on n: Insufficient cpu"
    ]


def test_verifier_finds_bindings_below_the_quorum() -> None:
    pair = [pod(f"m{i}", "g", cpu="1") for i in range(2)]
    seen = cluster([node("n")], pair, gang("g", 2))
    assert violations_of(seen, entity(gang("g", 2), pair), placed(m0="n")) == [
        "default/g: only 1 of 2 would have a node"
    ]


def test_verifier_finds_a_placement_on_a_worse_node() -> None:
    one = pod("p", cpu="1")
    seen = cluster([node("a", cpu="2"), node("b")], [one])
    assert violations_of(seen, alone(one), placed(p="a")) == [
        "default/p: it is placed on {'p': 'a'}, but pod by pod it would be on {'p': 'b'}"
    ]


def test_placement_on_a_worse_node_is_right_if_the_better_one_is_reserved() -> None:
    one = pod("p", cpu="1")
    seen = cluster([node("a", cpu="2"), node("b")], [one])
    assert Verifier().violations(seen, alone(one), placed(p="a"), reserved={"b"}) == []


def waiting(name: str, refusal: Refusal) -> Waiting:
    pods = (UnplacedPod(key(name), f"uid-{name}", refusal),)
    return Waiting(None, pods, 1, 0, 0, 0, frozenset())


def test_verifier_finds_a_refused_pod_that_fits() -> None:
    one = pod("p", cpu="1")
    (message,) = violations_of(cluster([node("n")], [one]), alone(one), waiting("p", Refusal(1)))
    assert "it is placed on {}, but pod by pod it would be on {'p': 'n'}" in message


def test_verifier_finds_a_refusal_for_the_wrong_reason() -> None:
    one = pod("p", cpu="9")
    refusal = Refusal(1, (("Too many pods", 1),))
    (message,) = violations_of(cluster([node("n")], [one]), alone(one), waiting("p", refusal))
    assert "p was refused for {'Too many pods': 1}" in message


@pytest.mark.parametrize(
    ("cure", "helps"),
    [
        ("uncordon node n", False),
        ("free or add cpu 5 on node n", True),
        ("free or add cpu 4 on node n", False),
        ("tolerate a=b:NoSchedule of node n, or remove it", False),
        ("label node n with disk=ssd", False),
    ],
)
def test_verifier_finds_a_cure_that_does_not_help(cure: str, helps: bool) -> None:
    one = pod("p", cpu="9")
    refusal = Refusal(1, (("Insufficient cpu", 1),), (cure,))
    found = violations_of(cluster([node("n")], [one]), alone(one), waiting("p", refusal))
    assert (found == []) is helps


def test_verifier_finds_an_entity_that_differs_from_the_objects() -> None:
    pair = [pod(f"m{i}", "g") for i in range(2)]
    seen = cluster([node("n")], pair, gang("g", 2))
    assert violations_of(seen, entity(gang("g", 1), pair)) == [
        "default/g: its group differs from the object"
    ]
    assert violations_of(seen, entity(gang("g", 2), pair[:1])) == [
        "default/g: its pending members differ from the pending pods"
    ]
    assert violations_of(seen, entity(gang("g", 2), pair, [pod("m2", "g", on="n")])) == [
        "default/g: its other members differ from the live pods"
    ]


def test_verifier_finds_an_entity_that_should_not_be_tried() -> None:
    gated = [pod("m0", "g", gates=["later"])]
    assert violations_of(cluster([node("n")], gated, basic("g")), entity(basic("g"), gated)) == [
        "default/g: it was tried although a member has a scheduling gate"
    ]
    single = [pod("m0", "g")]
    assert violations_of(
        cluster([node("n")], single, gang("g", 2)), entity(gang("g", 2), single)
    ) == ["default/g: it was tried although only 1 of 2 members exist"]


def test_verifier_finds_an_old_version_of_a_member() -> None:
    one = pod("p")
    newer = msgspec.structs.replace(
        one, metadata=msgspec.structs.replace(one.metadata, resource_version="2")
    )
    assert violations_of(cluster([node("n")], [newer]), alone(one)) == [
        "default/p: its pending members differ from the pending pods"
    ]


def test_verifier_fits_reads_the_current_objects() -> None:
    one = pod("p", cpu="3")
    verifier = Verifier()
    assert verifier.fits(cluster([node("n")], [one]), alone(one))
    assert not verifier.fits(cluster([node("n", cpu="2")], [one]), alone(one))
    assert not verifier.fits(cluster([node("n")], []), alone(one))


def test_every_nth_decision_is_compared_with_the_oracle() -> None:
    verifier, one = Verifier(share=2), pod("p", cpu="1")
    seen = cluster([node("a", cpu="2"), node("b")], [one])
    found = [bool(verifier.violations(seen, alone(one), placed(p="a"))) for _ in range(4)]
    assert found == [False, True, False, True]
