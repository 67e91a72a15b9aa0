"""Entities that no cluster can place are rejected before placement."""

from __future__ import annotations

from itertools import product

import pytest

from phalanx.api.core import Pod
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.decision import SCHEDULER_ERROR, ClusterEvent, Impossible
from phalanx.scheduler.entity import GROUP_CHECKS, Entity, validate_entity
from tests.scheduler.builders import alone, basic, entity, gang, key, pod


def rejection_of(one: Entity) -> Impossible:
    found = validate_entity(one)
    assert found is not None
    return found


def test_an_ordinary_group_is_not_rejected() -> None:
    assert validate_entity(entity(gang("g", 2), [pod("a", "g"), pod("b", "g")])) is None
    assert validate_entity(alone(pod("a", priority=7, preemption="Never"))) is None
    assert (
        validate_entity(
            entity(gang("g", 1).with_pod_preemption_policy, [pod("a", "g", preemption="Never")])
        )
        is None
    )


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (
            entity(basic("g"), [pod("a", "g", scheduler="a"), pod("b", "g", scheduler="b")]),
            "all pods in a single pod group should have the same .spec.schedulerName set, "
            'got: "b" and "a"',
        ),
        (
            entity(gang("g", 1, priority=1000), [pod("a", "g")]),
            "all pods in a single pod group should have the same priority as the pod group's "
            "priority, got 0 and 1000",
        ),
        (
            entity(gang("g", 1), [pod("a", "g", preemption="Never")]),
            "all pods in a single pod group should have the same preemption policy as the pod "
            "group's preemption policy, got Never and PreemptLowerPriority",
        ),
        (
            entity(
                gang("g", 1).with_pod_preemption_policy,
                [pod("a", "g"), pod("b", "g", preemption="Never")],
            ),
            "all pods in a single pod group should have the same preemption policy, "
            "got Never and PreemptLowerPriority",
        ),
    ],
)
def test_unequal_members_are_rejected_with_the_messages_of_kubernetes(
    one: Entity, message: str
) -> None:
    found = rejection_of(one)
    assert (found.reason, found.message, found.group) == (SCHEDULER_ERROR, message, key("g"))
    assert found.cure


def test_members_with_a_node_must_agree_with_their_group() -> None:
    elsewhere = pod("b", "g", scheduler="other", on="n")
    found = rejection_of(entity(gang("g", 2), [pod("a", "g")], [elsewhere]))
    assert found.message.endswith('got: "other" and "default-scheduler"')


def test_only_entity_events_wake_an_impossible_entity() -> None:
    found = rejection_of(entity(gang("g", 1), [pod("a", "g", priority=5)]))
    assert found.wakes_on == {
        ClusterEvent.GROUP_CHANGED,
        ClusterEvent.MEMBER_CHANGED,
        ClusterEvent.MEMBER_GONE,
    }


MemberFields = tuple[str, int, str]
MEMBER_FIELDS: list[MemberFields] = [
    *product(("a", "b"), (0, 5), ("Never", "PreemptLowerPriority"))
]


def pod_with_fields(name: str, fields: MemberFields) -> Pod:
    scheduler, priority, policy = fields
    return pod(name, "g", scheduler=scheduler, priority=priority, preemption=policy)


@pytest.mark.parametrize("own", [gang("g", 1), gang("g", 1, priority=5)])
def test_the_consistency_check_covers_every_entity_check(own: PodGroup) -> None:
    for one, other in product(MEMBER_FIELDS, MEMBER_FIELDS):
        pods = [pod_with_fields("x", one), pod_with_fields("y", other)]
        group, specs = entity(own, pods), [each.spec for each in pods]
        is_rejected = any(check(group, specs) for check in GROUP_CHECKS)
        assert (validate_entity(group) is not None) == is_rejected
