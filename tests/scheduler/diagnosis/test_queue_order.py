from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.meta import ObjectMeta, parse_timestamp
from phalanx.api.scheduling import USER_LABEL, CompositePodGroup, PodGroup
from phalanx.api.wire import Object
from phalanx.scheduler.diagnosis.queue_order import (
    WorkloadRow,
    WorkloadState,
    list_workloads,
)
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from tests.builders import gang, pod, pod_group

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def cluster(*objects: Object) -> ClusterObjects:
    def of(kind: str, struct: Any) -> Any:
        return [msgspec.convert(one, struct) for one in objects if one["kind"] == kind]

    trees = of("CompositePodGroup", CompositePodGroup)
    return ClusterObjects((), [*of("PodGroup", PodGroup), *trees], of("Pod", Pod))


def with_creation_time(objects: list[Object], when: str = EARLY, **status: Any) -> list[Object]:
    """Objects with this creation time; pods with this status."""
    for one in objects:
        one["metadata"] |= {"uid": one["metadata"]["name"], "creationTimestamp": when}
        if one["kind"] == "Pod" and status:
            one["status"], one["spec"]["nodeName"] = dict(status), "a"
    return objects


def with_condition(
    objects: list[Object], status: str, reason: str, message: str = ""
) -> list[Object]:
    objects[0]["status"] = {"conditions": [
        {"type": "PodGroupInitiallyScheduled", "status": status, "reason": reason,
         "message": message, "lastTransitionTime": LATE},
    ]}  # fmt: skip
    return objects


def states(lines: list[WorkloadRow]) -> list[tuple[str, WorkloadState, int]]:
    return [(one.ref.key.name, one.state, one.position) for one in lines]


def test_running_workloads_precede_waiting_ones_in_order_of_age() -> None:
    urgent = with_creation_time(gang("urgent", 1), LATE)
    urgent[0]["spec"]["priority"] = 5
    seen = cluster(
        *with_creation_time(gang("late", 1), LATE),
        *with_creation_time(gang("early", 1)),
        *urgent,
        *with_creation_time(gang("runs", 1), phase="Running"),
        *with_creation_time([pod_group("few", 2), pod("few-0", "few")]),
    )
    assert states(list_workloads(seen)) == [
        ("runs", WorkloadState.RUNNING, 0),
        ("urgent", WorkloadState.WAITING, 1),
        ("early", WorkloadState.WAITING, 2),
        ("late", WorkloadState.WAITING, 3),
        ("few", WorkloadState.HELD, 0),
    ]


def test_reasons_are_read_from_conditions() -> None:
    refused, new = (
        with_condition(with_creation_time(gang("refused", 1)), "False", "Unschedulable", "no room"),
        with_creation_time(gang("x", 1)),
    )
    first, second = list_workloads(cluster(*refused, *new))
    assert (first.reason, first.message) == ("Unschedulable", "no room")
    assert second.reason == "NotTriedYet"


def test_late_members_of_a_placed_gang_have_their_own_reason() -> None:
    group, first, second = with_condition(
        with_creation_time(gang("grown", 2, minimum=1)), "True", "Scheduled"
    )
    first["status"], first["spec"]["nodeName"] = {"phase": "Running"}, "a"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    second["status"] = {"conditions": [condition]}
    [line] = list_workloads(cluster(group, first, second))
    assert (line.state, line.placed, line.pending) == (WorkloadState.WAITING, 1, 1)
    assert (line.reason, line.has_run) == ("Unschedulable", True)


def test_running_time_starts_at_placement() -> None:
    [line] = list_workloads(
        cluster(
            *with_condition(
                with_creation_time(gang("runs", 2), phase="Running"), "True", "Scheduled"
            )
        )
    )
    assert (line.since, line.started, line.nodes) == (parse_timestamp(LATE), 2, ("a",))


def test_tree_of_groups_is_one_row() -> None:
    root: Object = {
        "kind": "CompositePodGroup", "metadata": {"name": "root", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minGroupCount": 2}}},
    }  # fmt: skip
    leaves = [*gang("a", 1), *gang("b", 2)]
    for one in leaves:
        if one["kind"] == "PodGroup":
            one["spec"]["parentCompositePodGroupName"] = "root"
    [line] = list_workloads(cluster(*with_creation_time([root, *leaves])))
    assert (line.kind, line.pending, line.needed) == ("CompositePodGroup", 3, 2)
    assert str(line.ref) == "CompositePodGroup default/root"


def test_ended_workloads_are_listed_only_on_request() -> None:
    ended = with_creation_time(gang("done", 2), phase="Succeeded")
    ended[2]["status"] = {"phase": "Failed"}
    seen = cluster(*ended, *with_creation_time([pod("alone")], phase="Running"))
    assert list_workloads(seen) == []
    done, alone = list_workloads(seen, include_all=True)
    assert (done.state, done.ended, done.failed, done.has_run) == (WorkloadState.ENDED, 2, 1, False)
    assert (alone.kind, alone.state, alone.has_run) == ("Pod", WorkloadState.RUNNING, True)


@pytest.mark.parametrize(
    ("phases", "limit", "state", "counts"),
    [
        (["Failed"], 6, WorkloadState.HELD, (1, 1)),
        (["Failed", "Failed"], 6, WorkloadState.HELD, (1, 1)),
        # The Job controller is about to say that it has failed, or is complete.
        (["Failed"], 0, WorkloadState.ENDED, (1, 1)),
        (["Failed", "Succeeded"], 6, WorkloadState.ENDED, (1, 0)),
    ],
)
def test_job_that_has_not_ended_replaces_failed_members(
    phases: list[str], limit: int, state: WorkloadState, counts: tuple[int, int]
) -> None:
    group, *pods = with_creation_time(gang("train-x", len(phases), minimum=1))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1"}
    group["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    for one, phase in zip(pods, phases, strict=True):
        one["status"], one["spec"]["nodeName"] = {"phase": phase}, "a"
    spec = {"completions": 1, "backoffLimit": limit}
    meta = {"name": "train", "namespace": "default"}
    jobs = [msgspec.convert({"metadata": meta, "spec": spec}, Job)]
    [line] = list_workloads(replace(cluster(group, *pods), jobs=jobs), include_all=True)
    assert (line.state, (line.ended, line.failed)) == (state, counts)


def test_group_is_named_by_its_owner() -> None:
    objects = with_creation_time(gang("train-x", 1))
    objects[0]["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": True}
    ]
    [line] = list_workloads(cluster(*objects))
    assert (line.owner, line.title) == ("Job/train", "Job/train")
    assert line.argument == "job/train"


def test_user_of_a_gang_is_named_by_the_label_of_its_job_or_of_its_group() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1"}
    objects = with_creation_time(gang("train-x", 1))
    objects[0]["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    job = Job(ObjectMeta(name="train", namespace="default", labels={USER_LABEL: "anna"}))
    [row] = list_workloads(replace(cluster(*objects), jobs=[job]))
    assert row.user == "anna"
    objects[0]["metadata"]["labels"] = {USER_LABEL: "bob"}
    [row] = list_workloads(replace(cluster(*objects), jobs=[job]))
    assert row.user == "bob"


def test_entity_without_an_owner_is_named_by_itself() -> None:
    rows = list_workloads(cluster(*with_creation_time([*gang("train", 1), pod("solo")])))
    assert sorted(row.argument for row in rows) == ["pod/solo", "podgroup/train"]


def test_positions_count_all_namespaces() -> None:
    seen = cluster(
        *with_creation_time(gang("a", 1)),
        *with_creation_time(gang("b", 1, namespace="other"), LATE),
    )
    assert states(list_workloads(seen)) == [
        ("a", WorkloadState.WAITING, 1),
        ("b", WorkloadState.WAITING, 2),
    ]


def owned_by(objects: list[Object], kind: str, name: str, **labels: str) -> list[Object]:
    owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": name, "controller": True}
    objects[0]["metadata"]["ownerReferences"] = [owner]
    for one in objects[1:]:
        one["metadata"]["labels"] = dict(labels)
    return objects


def test_groups_of_one_owner_have_different_names() -> None:
    first, second = ({"leaderworkerset.sigs.k8s.io/group-index": one} for one in ("0", "11"))
    role = "jobset.sigs.k8s.io/replicatedjob-name"
    job = {role: "workers", "jobset.sigs.k8s.io/job-index": "1"}
    seen = cluster(
        *with_creation_time(owned_by(gang("x", 2), "LeaderWorkerSet", "llm", **first)),
        *with_creation_time(owned_by(gang("y", 2), "LeaderWorkerSet", "llm", **second)),
        *with_creation_time(owned_by(gang("d", 1), "JobSet", "set", **{role: "driver"})),
        *with_creation_time(owned_by(gang("w", 2), "JobSet", "set", **job)),
        *with_creation_time(owned_by(gang("u", 1), "Custom", "own")),
        *with_creation_time(owned_by(gang("v", 1), "Custom", "own")),
        *with_creation_time(owned_by(gang("alone", 1), "LeaderWorkerSet", "one", **first)),
    )
    names = {row.ref.name: row.display_name for row in list_workloads(seen)}
    assert names == {
        "x": "leaderworkerset/llm[0]",
        "y": "leaderworkerset/llm[11]",
        "d": "jobset/set[driver]",
        "w": "jobset/set[workers-1]",
        "u": "custom/own[0]",
        "v": "custom/own[1]",
        "alone": "leaderworkerset/one",
    }
    # Commands still take the owner.
    assert {row.argument for row in list_workloads(seen) if row.ref.name in "xy"} == {
        "leaderworkerset/llm"
    }
    assert list_workloads(seen)[0].display_title.endswith("]")


def test_pods_of_one_owner_have_different_names() -> None:
    owner = {
        "apiVersion": "v1",
        "kind": "ReplicaSet",
        "name": "web",
        "uid": "w",
        "controller": True,
    }
    made = [pod(f"web-{end}", meta={"ownerReferences": [owner]}) for end in ("a1", "b2")]
    rows = list_workloads(cluster(*with_creation_time(made)))
    assert [row.display_name for row in rows] == ["replicaset/web[a1]", "replicaset/web[b2]"]
