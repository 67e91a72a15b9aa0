from __future__ import annotations

from typing import Any

import msgspec

from phalanx.api.core import Pod
from phalanx.api.meta import seconds
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.api.wire import Object
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.scheduler.asking.lineup import Lined, Standing, lineup, of_namespace, titled
from tests.builders import gang, pod, pod_group

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def cluster(*objects: Object) -> Cluster:
    def of(kind: str, struct: Any) -> Any:
        return [msgspec.convert(one, struct) for one in objects if one["kind"] == kind]

    trees = of("CompositePodGroup", CompositePodGroup)
    return Cluster((), [*of("PodGroup", PodGroup), *trees], of("Pod", Pod))


def made(objects: list[Object], when: str = EARLY, **status: Any) -> list[Object]:
    """Objects that came about then; pods with this status."""
    for one in objects:
        one["metadata"] |= {"uid": one["metadata"]["name"], "creationTimestamp": when}
        if one["kind"] == "Pod" and status:
            one["status"], one["spec"]["nodeName"] = dict(status), "a"
    return objects


def said(objects: list[Object], status: str, reason: str, message: str = "") -> list[Object]:
    objects[0]["status"] = {"conditions": [
        {"type": "PodGroupInitiallyScheduled", "status": status, "reason": reason,
         "message": message, "lastTransitionTime": LATE},
    ]}  # fmt: skip
    return objects


def standing(lines: list[Lined]) -> list[tuple[str, Standing, int]]:
    return [(one.id.key.name, one.standing, one.position) for one in lines]


def test_who_runs_comes_before_who_waits_and_age_counts() -> None:
    urgent = made(gang("urgent", 1), LATE)
    urgent[0]["spec"]["priority"] = 5
    seen = cluster(
        *made(gang("late", 1), LATE), *made(gang("early", 1)), *urgent,
        *made(gang("runs", 1), phase="Running"), *made([pod_group("few", 2), pod("few-0", "few")]),
    )  # fmt: skip
    assert standing(lineup(seen)) == [
        ("runs", Standing.RUNNING, 0),
        ("urgent", Standing.WAITING, 1),
        ("early", Standing.WAITING, 2),
        ("late", Standing.WAITING, 3),
        ("few", Standing.HELD, 0),
    ]


def test_reasons_are_what_the_scheduler_wrote() -> None:
    told, new = said(made(gang("told", 1)), "False", "Unschedulable", "no room"), made(gang("x", 1))
    first, second = lineup(cluster(*told, *new))
    assert (first.reason, first.message) == ("Unschedulable", "no room")
    assert second.reason == "NotTriedYet"


def test_late_members_of_a_placed_gang_are_spoken_of_themselves() -> None:
    group, first, second = said(made(gang("grown", 2, minimum=1)), "True", "Scheduled")
    first["status"], first["spec"]["nodeName"] = {"phase": "Running"}, "a"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    second["status"] = {"conditions": [condition]}
    [line] = lineup(cluster(group, first, second))
    assert (line.standing, line.placed, line.pending) == (Standing.WAITING, 1, 1)
    assert (line.reason, line.has_run) == ("Unschedulable", True)


def test_who_runs_does_so_since_it_was_placed() -> None:
    [line] = lineup(cluster(*said(made(gang("runs", 2), phase="Running"), "True", "Scheduled")))
    assert (line.since, line.started, line.nodes) == (seconds(LATE), 2, ("a",))


def test_a_tree_is_one_line() -> None:
    root: Object = {
        "kind": "CompositePodGroup", "metadata": {"name": "root", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minGroupCount": 2}}},
    }  # fmt: skip
    leaves = [*gang("a", 1), *gang("b", 2)]
    for one in leaves:
        if one["kind"] == "PodGroup":
            one["spec"]["parentCompositePodGroupName"] = "root"
    [line] = lineup(cluster(*made([root, *leaves])))
    assert (line.kind, line.pending, line.needed) == ("CompositePodGroup", 3, 2)
    assert titled(line.id) == "CompositePodGroup default/root"


def test_those_at_their_end_are_listed_only_for_those_who_ask_for_everybody() -> None:
    ended = made(gang("done", 2), phase="Succeeded")
    ended[2]["status"] = {"phase": "Failed"}
    seen = cluster(*ended, *made([pod("alone")], phase="Running"))
    assert lineup(seen) == []
    done, alone = lineup(seen, everybody=True)
    assert (done.standing, done.ended, done.failed, done.has_run) == (Standing.ENDED, 2, 1, False)
    assert (alone.kind, alone.standing, alone.has_run) == ("Pod", Standing.RUNNING, True)


def test_a_group_is_known_by_what_it_was_made_for() -> None:
    objects = made(gang("train-x", 1))
    objects[0]["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": True}
    ]
    [line] = lineup(cluster(*objects))
    assert (line.owner, line.title) == ("Job/train", "Job/train")


def test_one_namespace_keeps_its_turns_among_all() -> None:
    seen = cluster(*made(gang("a", 1)), *made(gang("b", 1, namespace="other"), LATE))
    assert standing(of_namespace(lineup(seen), "other")) == [("b", Standing.WAITING, 2)]
