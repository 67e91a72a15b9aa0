"""The table of kinds that are read as PodGroups: decoding, links of pods, status, annotations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD_GROUP, WORKLOAD, Kind
from phalanx.api.meta import Condition, ObjectMeta
from phalanx.api.other_kinds import PriorityClass
from phalanx.api.scheduling import (
    POD_GROUP_SCHEDULED,
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    SchedulingPolicy,
)
from phalanx.api.wire import Object
from phalanx.api.workload_sources import (
    COSCHEDULING_POD_GROUP,
    CUSTOM_COMPOSITE_POD_GROUP,
    CUSTOM_POD_GROUP,
    MIN_COUNT_ANNOTATION,
    NATIVE_SOURCES,
    POD_GROUP_LABEL,
    POLICY_ANNOTATION,
    TOPOLOGY_KEY_ANNOTATION,
    VOLCANO_POD_GROUP,
    WORKLOAD_SOURCES,
    WorkloadSource,
    read_job,
    resolve_priority,
    select_sources,
)
from tests.builders import pod

ROWS = {row.kind: row for row in WORKLOAD_SOURCES}


def read(kind: Kind, spec: Object, **status: Any) -> Any:
    row = ROWS[kind]
    obj = {"metadata": {"name": "a", "namespace": "default"}, "spec": spec, "status": status}
    assert row.convert is not None
    return row.convert(msgspec.convert(obj, row.struct))


def decode_pod(**meta: Any) -> Pod:
    return msgspec.convert(pod("a-0", meta=meta), Pod)


def test_a_group_without_a_priority_takes_that_of_its_members() -> None:
    gang = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    members = [msgspec.convert(pod("x", spec={"priority": priority}), Pod) for priority in (7, 5)]
    assert resolve_priority(read(CUSTOM_POD_GROUP, gang), members, {}).spec.priority == 5
    assert resolve_priority(read(CUSTOM_POD_GROUP, gang), (), {}).spec.priority == 0
    own = read(CUSTOM_POD_GROUP, {**gang, "priority": 9})
    assert resolve_priority(own, members, {}).spec.priority == 9
    composite = {"schedulingPolicy": {"gang": {"minGroupCount": 3}}}
    assert read(CUSTOM_COMPOSITE_POD_GROUP, composite).quorum == 3


def test_a_group_has_the_priority_of_its_class_unless_groups_may_not_have_that() -> None:
    members = [msgspec.convert(pod("x", spec={"priority": 7}), Pod)]
    classes = {
        name: PriorityClass(ObjectMeta(name=name), value, preemption_policy=policy)
        for name, value, policy in (
            ("high", 1000, "Never"), ("system-node-critical", 2_000_001_000, "Never"),
        )
    }  # fmt: skip
    found = {
        (kind, name): resolve_priority(
            read(kind, {"priorityClassName": name}), members, classes
        ).spec
        for kind in (CUSTOM_POD_GROUP, CUSTOM_COMPOSITE_POD_GROUP, VOLCANO_POD_GROUP)
        for name in ("high", "system-node-critical", "absent")
    }
    assert {spec.priority for (_, name), spec in found.items() if name == "high"} == {1000}
    assert {spec.priority for (_, name), spec in found.items() if name != "high"} == {7}
    assert {name for (_, name), spec in found.items() if spec.preemption_policy == "Never"} == {
        "high"
    }


@pytest.mark.parametrize(
    ("kind", "spec", "quorum", "warning"),
    [
        (COSCHEDULING_POD_GROUP, {"minMember": 4}, 4, ""),
        (COSCHEDULING_POD_GROUP, {}, 1, ""),
        (VOLCANO_POD_GROUP, {"minMember": 2, "queue": "default"}, 2, ""),
        (VOLCANO_POD_GROUP, {"minMember": 2, "queue": "a"}, 2, 'queue "a" is ignored'),
        (VOLCANO_POD_GROUP, {"minMember": 1, "minTaskMember": {"a": 1, "b": 2}}, 3, "as a sum"),
        (VOLCANO_POD_GROUP, {"minMember": 0}, 1, ""),
        (
            VOLCANO_POD_GROUP,
            {"minMember": 2, "networkTopology": {"mode": "hard", "highestTierAllowed": 1}},
            2,
            "networkTopology is ignored",
        ),
        (
            VOLCANO_POD_GROUP,
            {"queue": "a", "subGroupPolicy": [{"name": "x"}]},
            1,
            'queue "a" is ignored: Phalanx has no queues; subGroupPolicy is ignored',
        ),
    ],
)
def test_groups_of_other_projects_are_gangs(
    kind: Kind, spec: Object, quorum: int, warning: str
) -> None:
    group = read(kind, spec, phase="Running", running=1)
    assert (group.quorum, group.is_gang, group.status.ready_pods) == (quorum, True, 1)
    obj = msgspec.convert({"metadata": {}, "spec": spec}, ROWS[kind].struct)
    text = ROWS[kind].warn(obj)
    assert (warning in text) if warning else text == ""


def test_volcano_group_that_no_scheduler_has_seen_has_an_unknown_count() -> None:
    assert read(VOLCANO_POD_GROUP, {}, phase="Pending").status.pending_pods == -1
    assert read(VOLCANO_POD_GROUP, {}, phase="Inqueue").status.pending_pods == 0


@pytest.mark.parametrize(
    ("counts", "coscheduling", "volcano"),
    [
        ({}, "Pending", "Inqueue"),
        ({"pending_pods": 2}, "Scheduling", "Inqueue"),
        ({"scheduled_pods": 1, "pending_pods": 1}, "Pending", "Unknown"),
        ({"scheduled_pods": 2}, "Scheduled", "Running"),
        ({"scheduled_pods": 2, "ready_pods": 2}, "Running", "Running"),
        ({"failed_pods": 1, "scheduled_pods": 1}, "Failed", "Unknown"),
        ({"succeeded_pods": 2}, "Finished", "Completed"),
    ],
)
def test_status_is_written_in_the_terms_of_the_kind(
    counts: dict[str, Any], coscheduling: str, volcano: str
) -> None:
    spec = PodGroupSpec(scheduling_policy=SchedulingPolicy(gang=GangPolicy(2)))
    group = PodGroup(ObjectMeta(uid="u"), spec, PodGroupStatus(**counts))
    assert encode(ROWS[COSCHEDULING_POD_GROUP], group)["phase"] == coscheduling
    assert encode(ROWS[VOLCANO_POD_GROUP], group)["phase"] == volcano


@pytest.mark.parametrize(("status", "kind"), [("True", "Scheduled"), ("False", "Unschedulable")])
def test_volcano_gets_one_condition(status: str, kind: str) -> None:
    condition = Condition(POD_GROUP_SCHEDULED, status, "Reason", "text")
    group = PodGroup(ObjectMeta(uid="u"), status=PodGroupStatus(conditions=(condition,)))
    (found,) = encode(ROWS[VOLCANO_POD_GROUP], group)["conditions"]
    assert (found["type"], found["message"]) == (kind, "text")


def encode(row: WorkloadSource, group: PodGroup) -> Object:
    assert row.encode_status is not None
    return row.encode_status(group)


def test_pods_name_their_group_in_several_ways() -> None:
    sources = select_sources([CUSTOM_POD_GROUP, VOLCANO_POD_GROUP], ["volcano"])
    owner = {"kind": "Job", "name": "job", "uid": "u", "controller": True}
    gang = {POLICY_ANNOTATION: "gang"}
    found = [
        sources.link_pod(one).group
        for one in (
            decode_pod(labels={POD_GROUP_LABEL: "a"}),
            decode_pod(annotations={POD_GROUP_LABEL: "b"}),
            decode_pod(annotations={"scheduling.k8s.io/group-name": "c"}),
            decode_pod(annotations={"scheduling.volcano.sh/group-name": "e"}),
            decode_pod(labels={"scheduling.volcano.sh/group-name": "f"}),
            decode_pod(annotations=gang, ownerReferences=[owner]),
            decode_pod(annotations=gang),
            decode_pod(),
            msgspec.convert(pod("a-0", "d", meta={"labels": {POD_GROUP_LABEL: "a"}}), Pod),
        )
    ]
    assert [key.name if key else "" for key in found] == [
        "a", "b", "c", "e", "f", "job", "", "", "d",
    ]  # fmt: skip


def test_sources_depend_on_what_a_server_serves() -> None:
    native = (POD_GROUP, COMPOSITE_POD_GROUP, WORKLOAD)
    assert not NATIVE_SOURCES.need_conversion
    assert select_sources(native).rows == NATIVE_SOURCES.rows
    assert select_sources(native).need_conversion
    assert not select_sources(native).drops_scheduling_group
    assert select_sources([VOLCANO_POD_GROUP]).rows == ()
    assert select_sources([CUSTOM_POD_GROUP]).targets == {POD_GROUP}


@pytest.mark.parametrize(
    ("annotations", "scheduling"),
    [
        ({}, None),
        ({POLICY_ANNOTATION: "basic"}, None),
        ({POLICY_ANNOTATION: "gang"}, {"schedulingPolicy": {"gang": {}}}),
        (
            {POLICY_ANNOTATION: "gang", MIN_COUNT_ANNOTATION: "3", TOPOLOGY_KEY_ANNOTATION: "zone"},
            {
                "schedulingPolicy": {"gang": {"minCount": 3}},
                "schedulingConstraints": {"topology": [{"key": "zone"}]},
            },
        ),
        (
            {POLICY_ANNOTATION: "gang", MIN_COUNT_ANNOTATION: "many"},
            {"schedulingPolicy": {"gang": {}}},
        ),
        (
            {POLICY_ANNOTATION: "gang", MIN_COUNT_ANNOTATION: "0"},
            {"schedulingPolicy": {"gang": {}}},
        ),
    ],
)
def test_annotations_of_a_job_say_how_it_is_scheduled(
    annotations: dict[str, str], scheduling: Object | None
) -> None:
    on_job = {"metadata": {"annotations": annotations}}
    on_template = {"metadata": {}, "spec": {"template": on_job}}
    for manifest in (on_job, on_template):
        assert read_job(msgspec.convert(manifest, Job)).spec.scheduling == scheduling
    own = {**on_job, "spec": {"scheduling": {}}}
    assert read_job(msgspec.convert(own, Job)).spec.scheduling == {}
