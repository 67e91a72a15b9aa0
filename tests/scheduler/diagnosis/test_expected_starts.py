"""When waiting entities are expected to start, from the objects alone."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from phalanx.api.meta import Condition, Ref, composite_pod_group_ref, pod_group_ref, timestamp
from phalanx.api.scheduling import RESERVED
from phalanx.scheduler.diagnosis.diagnosis import FITS, diagnose
from phalanx.scheduler.diagnosis.expected_starts import (
    ExpectedStart,
    describe_seconds,
    expected_starts,
)
from phalanx.scheduler.diagnosis.what_if import (
    ForecastVerdict,
    NewNodeTemplate,
    forecast,
    with_nodes,
)
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from tests.scheduler.builders import composite, gang, key, node
from tests.scheduler.reservation.virtual_scheduler import ending_pod, job_owner, profiles

NOW = 1000.0
RUNNING = [
    ending_pod("a-0", on="n0", seconds=600, owner=job_owner("a"), started=timestamp(NOW - 60)),
    ending_pod("b-0", on="n1", seconds=1200, owner=job_owner("b"), started=timestamp(NOW - 480)),
]


def cluster(*groups: str, size: int = 2) -> ClusterObjects:
    """Three nodes, two of them busy, and gangs that wait."""
    pods = [ending_pod(f"{name}-{n}", name, seconds=300) for name in groups for n in range(size)]
    return ClusterObjects(
        nodes=[node(f"n{n}") for n in range(3)],
        groups=[gang(name, size) for name in groups],
        pods=[*RUNNING, *pods],
    )


def test_starts_are_planned_one_after_the_other() -> None:
    starts = expected_starts(cluster("first", "second"), now=NOW)
    assert [starts[Ref("PodGroup", *key(name))].time for name in ("first", "second")] == [
        NOW + 540,
        NOW + 840,
    ]


def test_start_names_what_must_end() -> None:
    start = expected_starts(cluster("g", size=3), now=NOW)[pod_group_ref(key("g"))]
    assert start.describe(NOW) == "expected in 12 min, when job/b and job/a end"
    assert replace_reserved(start).describe(NOW) == (
        "reserved; expected in 12 min, when job/b and job/a end"
    )


def test_a_gang_that_must_run_before_is_named_by_its_owner_not_by_its_pods() -> None:
    objects = cluster("first", "second")
    second = pod_group_ref(key("second"))
    assert "podgroup/first (not started)" in expected_starts(objects, now=NOW)[second].waits_for
    owned = [
        replace(pod, metadata=replace(pod.metadata, owner_references=(job_owner("first"),)))
        if pod.metadata.name.startswith("first-")
        else pod
        for pod in objects.pods
    ]
    waits_for = expected_starts(dataclasses.replace(objects, pods=owned), now=NOW)[second].waits_for
    assert "job/first (not started)" in waits_for
    assert not any(name.startswith("pod/") for name in waits_for)


def test_what_must_end_in_another_namespace_is_named_with_it() -> None:
    objects = cluster("g", size=3)
    pods = [
        replace(pod, metadata=replace(pod.metadata, namespace="research"))
        if pod in RUNNING
        else pod
        for pod in objects.pods
    ]
    objects = dataclasses.replace(objects, pods=pods)
    start = expected_starts(objects, now=NOW)[pod_group_ref(key("g"))]
    assert start.waits_for == ("job/b in research", "job/a in research")


def replace_reserved(start: ExpectedStart) -> ExpectedStart:
    return ExpectedStart(start.time, start.waits_for, is_reserved=True)


def test_condition_of_the_group_says_whether_nodes_are_reserved() -> None:
    objects = cluster("g")
    (group,) = objects.groups
    status = replace(group.status, conditions=(Condition(RESERVED, "True", "StartExpected"),))
    reserved = ClusterObjects(
        nodes=objects.nodes, groups=[replace(group, status=status)], pods=objects.pods
    )
    assert expected_starts(reserved, now=NOW)[pod_group_ref(key("g"))].is_reserved
    assert not expected_starts(objects, now=NOW)[pod_group_ref(key("g"))].is_reserved


def test_entity_that_can_never_run_has_no_expected_start() -> None:
    assert expected_starts(cluster("g", size=4), now=NOW) == {}


def test_entity_that_fits_is_expected_now() -> None:
    start = expected_starts(cluster("g", size=1), now=NOW)[pod_group_ref(key("g"))]
    assert (start.time, start.describe(NOW)) == (NOW, "expected now")


def test_unknown_end_makes_the_start_unknown() -> None:
    pods = [ending_pod("r", on="n0"), ending_pod("g-0", "g")]
    objects = ClusterObjects(nodes=[node("n0")], groups=[gang("g", 1)], pods=pods)
    start = expected_starts(objects, now=NOW)[pod_group_ref(key("g"))]
    assert start.describe(NOW) == "unknown, when pod/r ends"


def test_tree_of_groups_has_one_expected_start() -> None:
    pods = [ending_pod(f"{name}-0", name) for name in ("left", "right")]
    objects = ClusterObjects(
        nodes=[node("n0"), node("n1")],
        groups=[
            composite("tree", 2),
            gang("left", 1, parent="tree"),
            gang("right", 1, parent="tree"),
        ],
        pods=[RUNNING[0], *pods],
    )
    starts = expected_starts(objects, now=NOW)
    assert starts[composite_pod_group_ref(key("tree"))].time == NOW + 540


def test_forecast_of_a_gang_that_waits_has_its_expected_start() -> None:
    subjects = [pod_group_ref(key("g")), pod_group_ref(key("h"))]
    one, other = forecast(subjects, cluster("g", "h"), now=NOW)
    assert one.verdict is other.verdict is ForecastVerdict.WAITS
    assert one.expected is not None
    assert one.expected.time == NOW + 540
    (fits,) = forecast([pod_group_ref(key("g"))], cluster("g", size=1), now=NOW)
    assert fits.expected is None


def test_times_are_rounded_as_people_say_them() -> None:
    assert [describe_seconds(value) for value in (40, 720, 7300)] == ["40 s", "12 min", "2.0 h"]


def held_cluster(status: str = "True") -> ClusterObjects:
    """A gang of three waits for b and has a reservation; one of a single pod would fit now."""
    large, small = gang("large", 3), gang("a-small", 1)
    condition = Condition(RESERVED, status, "StartExpected")
    large = replace(large, status=replace(large.status, conditions=(condition,)))
    pods = [ending_pod(f"large-{n}", "large") for n in range(3)]
    return ClusterObjects(
        nodes=[node(f"n{n}") for n in range(3)],
        groups=[large, small],
        pods=[*RUNNING, *pods, ending_pod("a-small-0", "a-small")],
    )


HELD = f"held by a reservation for podgroup/large (expected start {timestamp(NOW + 720)})"


def test_why_says_that_a_reservation_holds_an_entity() -> None:
    small = pod_group_ref(key("a-small"))
    found = diagnose(small, held_cluster(), now=NOW)
    assert (found.state, found.message) == ("Unschedulable", HELD)
    assert found.evidence is None
    assert diagnose(small, held_cluster("False"), now=NOW).state == FITS


def test_what_if_says_that_a_reservation_holds_an_entity() -> None:
    small = pod_group_ref(key("a-small"))
    (found,) = forecast([small], held_cluster(), now=NOW)
    assert (found.verdict, found.message) == (ForecastVerdict.WAITS, HELD)
    assert found.waits_for == ()
    (free,) = forecast([small], held_cluster("False"), now=NOW)
    assert free.verdict is ForecastVerdict.FITS


def test_reserved_entity_and_profiles_without_reservations_are_not_held() -> None:
    large = pod_group_ref(key("large"))
    assert "held" not in diagnose(large, held_cluster(), now=NOW).message
    small = pod_group_ref(key("a-small"))
    assert diagnose(small, held_cluster(), profiles(mode="Off"), now=NOW).state == FITS


def with_written_start(objects: ClusterObjects, name: str, reason: str, start: str) -> None:
    """Let the condition Reserved of a group name a start."""
    assert isinstance(objects.groups, list)
    for number, group in enumerate(objects.groups):
        if group.metadata.name == name:
            message = f"2 nodes reserved; expected start {start}, when job/a ends"
            condition = Condition(RESERVED, "True", reason, message)
            status = replace(group.status, conditions=(condition,))
            objects.groups[number] = replace(group, status=status)


def test_start_is_the_one_that_the_condition_names() -> None:
    # The scheduler has seen pods of job/b end after 800 s; they are deleted.
    objects = cluster("first", "second")
    with_written_start(objects, "first", "StartExpected", timestamp(NOW + 320))
    starts = expected_starts(objects, now=NOW)
    first = starts[pod_group_ref(key("first"))]
    assert (first.time, first.is_reserved) == (NOW + 320, True)
    (forecasted,) = forecast([pod_group_ref(key("first"))], objects, now=NOW)
    assert forecasted.expected is not None
    assert forecasted.expected.time == NOW + 320


def test_start_is_unknown_if_the_condition_says_so() -> None:
    objects = cluster("first")
    with_written_start(objects, "first", "StartUnknown", "unknown")
    assert expected_starts(objects, now=NOW)[pod_group_ref(key("first"))].time is None


def test_entities_behind_a_written_reservation_are_planned_after_it() -> None:
    objects = cluster("a-second", "first", size=3)
    with_written_start(objects, "first", "StartExpected", timestamp(NOW + 2000))
    starts = expected_starts(objects, now=NOW)
    assert starts[pod_group_ref(key("first"))].time == NOW + 2000
    assert starts[pod_group_ref(key("a-second"))].time == NOW + 2300


def test_written_start_does_not_hold_in_a_cluster_with_more_nodes() -> None:
    objects = cluster("first")
    with_written_start(objects, "first", "StartExpected", timestamp(NOW + 320))
    more = with_nodes(objects, 1, NewNodeTemplate({"cpu": "4", "pods": "10"}, {}))
    assert expected_starts(more, now=NOW)[pod_group_ref(key("first"))].time == NOW
