"""What conditions are to say, as a function of verdicts and of what they say already."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.api.core import Pod, PodStatus
from phalanx.api.errors import ServerError
from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.meta import Key, ObjectMeta, timestamp
from phalanx.api.scheduling import (
    DEGRADED,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_SCHEDULED,
    PodGroup,
)
from phalanx.api.wire import ANONYMOUS, STRATEGIC_PATCH, Object, Reply, Request
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.protocol import Listing
from phalanx.client.transports import InProcessTransport
from phalanx.controllers.reconcile_loop import Patch, ReconcilePlan
from phalanx.controllers.scheduling.status_writer import (
    COUNT_DELAY,
    ConditionUpdate,
    SchedulerView,
    SchedulingStatusWriter,
)
from tests import builders

NOW = 1_800_000_000.0
BEFORE = "2027-01-01T00:00:00Z"
KEY = Key("default", "a")
NO_ROOM = ConditionUpdate("False", "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.")
WAITING = ConditionUpdate(
    "False", "NotReadyForScheduling", "waiting for 3 members, 2 are there", is_pending=True
)
PLACED = ConditionUpdate("True", "Scheduled", "", quorum=3)


class FrozenClock:
    def now(self) -> float:
        return NOW


async def refuse_request(request: Request) -> Reply:
    raise ServerError("a reconcile asks nobody")


def existing_condition(kind: str, verdict: ConditionUpdate, generation: int = 4) -> Object:
    """A condition that says so already, since long."""
    return {
        "type": kind, "status": verdict.status, "reason": verdict.reason,
        "message": verdict.message, "lastTransitionTime": BEFORE,
        "observedGeneration": generation,
    }  # fmt: skip


def a_pod(
    *conditions: Object, name: str = "a", uid: str = "u", promised: str = "", **more: object
) -> Pod:
    made = builders.pod(name, **more)  # type: ignore[arg-type]
    made["metadata"] |= {"uid": uid, "resourceVersion": "7"}
    status = {"conditions": list(conditions), "nominatedNodeName": promised}
    return msgspec.convert({**made, "status": status}, Pod)


def a_group(*conditions: Object, uid: str = "u") -> PodGroup:
    made = builders.pod_group("a", 3)
    made["metadata"] |= {"uid": uid, "resourceVersion": "7", "generation": 4}
    return msgspec.convert({**made, "status": {"conditions": list(conditions)}}, PodGroup)


def judged_meta(uid: str = "u", generation: int = 4) -> ObjectMeta:
    """What was judged, as it was then."""
    return ObjectMeta(name=KEY.name, namespace=KEY.namespace, uid=uid, generation=generation)


def reporter(
    pods_there: Pod | list[Pod] | None = None,
    group: PodGroup | None = None,
    *,
    placed: int = 3,
    counts: bool = False,
    busy: bool = False,
) -> SchedulingStatusWriter:
    pods: ObjectCache[Pod] = ObjectCache()
    groups: ObjectCache[PodGroup] = ObjectCache()
    known = pods_there if isinstance(pods_there, list) else [pods_there] if pods_there else []
    pods.replace(Listing(known, 9))
    groups.replace(Listing([group] if group else [], 9))
    census = SchedulerView(lambda key: placed, lambda: busy, counts, ["default-scheduler"])
    return SchedulingStatusWriter(
        Client(InProcessTransport(refuse_request, ANONYMOUS)), pods, groups, FrozenClock(), census
    )


def plan_for_pod(pod: Pod | None, verdict: ConditionUpdate, uid: str = "u") -> ReconcilePlan:
    found = reporter(pod)
    found.report_pod(judged_meta(uid), verdict)
    return found.reconcile_pod(KEY)


def plan_for_group(
    group: PodGroup | None, *verdicts: ConditionUpdate, about: ObjectMeta | None = None
) -> ReconcilePlan:
    found = reporter(group=group)
    for verdict in verdicts:
        found.report_group(about or judged_meta(), verdict)
    return found.reconcile_group(KEY)


def patched_status(plan: ReconcilePlan) -> Object:
    """The status that a plan of one patch writes."""
    (patch,) = plan.actions
    assert isinstance(patch, Patch)
    assert isinstance(patch.change, dict)
    status: Object = patch.change["status"]
    return status


def conditions(plan: ReconcilePlan) -> list[Object]:
    """The conditions among them."""
    written: list[Object] = patched_status(plan)["conditions"]
    return written


# ---- pods ----------------------------------------------------------------------------------------


def test_a_pod_is_told_why_it_has_no_node() -> None:
    (patch,) = plan_for_pod(a_pod(), NO_ROOM).actions
    assert patch == Patch(
        POD, KEY,
        {
            "metadata": {"uid": "u", "resourceVersion": "7"},
            "status": {"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": NO_ROOM.message, "lastTransitionTime": timestamp(NOW),
                "lastProbeTime": None,
            }]},
        },
        "status", STRATEGIC_PATCH,
    )  # fmt: skip


def test_what_a_pod_says_already_is_not_written_again() -> None:
    assert (
        plan_for_pod(a_pod(existing_condition("PodScheduled", NO_ROOM)), NO_ROOM) == ReconcilePlan()
    )


def test_a_new_reason_keeps_the_time_of_the_old_status() -> None:
    (written,) = conditions(
        plan_for_pod(a_pod(existing_condition("PodScheduled", WAITING)), NO_ROOM)
    )
    assert (written["reason"], written["lastTransitionTime"]) == ("Unschedulable", BEFORE)


def test_a_new_status_has_a_new_time() -> None:
    (written,) = conditions(
        plan_for_pod(a_pod(existing_condition("PodScheduled", PLACED)), NO_ROOM)
    )
    assert written["lastTransitionTime"] == timestamp(NOW)


def test_the_word_of_a_gate_stands() -> None:
    gated = ConditionUpdate("False", "SchedulingGated", "Scheduling is blocked due to gates")
    held = a_pod(existing_condition("PodScheduled", gated), gates=["wait"])
    assert plan_for_pod(held, WAITING) == plan_for_pod(held, NO_ROOM) == ReconcilePlan()
    free = a_pod(existing_condition("PodScheduled", gated))
    assert conditions(plan_for_pod(free, NO_ROOM))[0]["reason"] == "Unschedulable"


@pytest.mark.parametrize(
    "pod", [None, a_pod(uid="another"), a_pod(on="n1")], ids=["gone", "a namesake", "bound"]
)
def test_a_pod_that_is_not_meant_any_more_is_told_nothing(pod: Pod | None) -> None:
    assert plan_for_pod(pod, NO_ROOM) == ReconcilePlan()


@pytest.mark.parametrize(
    "known", [(), (existing_condition("PodScheduled", NO_ROOM),)], ids=["news", "known"]
)
def test_a_pod_that_is_refused_loses_the_node_that_it_was_promised(
    known: tuple[Object, ...],
) -> None:
    refused = patched_status(plan_for_pod(a_pod(*known, promised="n1"), NO_ROOM))
    assert refused["nominatedNodeName"] is None
    assert ("conditions" in refused) == (not known)


def test_a_pod_that_is_not_even_tried_keeps_the_node_that_it_was_promised() -> None:
    assert "nominatedNodeName" not in patched_status(plan_for_pod(a_pod(promised="n1"), WAITING))


@pytest.mark.parametrize(
    ("priority", "node", "loses"), [(9, "n1", True), (0, "n1", False), (9, "n2", False)]
)
def test_a_node_that_went_to_somebody_more_important_is_no_longer_promised_to_others(
    priority: int, node: str, loses: bool
) -> None:
    found = reporter(a_pod(promised="n1"))
    found.void_nominations(node, priority)
    plan = found.reconcile_pod(KEY)
    assert (plan != ReconcilePlan()) == loses
    if loses:
        assert patched_status(plan) == {"nominatedNodeName": None}


def test_nobody_is_told_anything_without_a_verdict() -> None:
    assert reporter(a_pod(), a_group()).reconcile_pod(KEY) == ReconcilePlan()
    assert reporter(a_pod(), a_group()).reconcile_group(KEY) == ReconcilePlan()


# ---- groups --------------------------------------------------------------------------------------


def test_a_group_that_does_not_fit_says_so_under_both_names() -> None:
    plan = plan_for_group(a_group(), NO_ROOM)
    (patch,) = plan.actions
    assert isinstance(patch, Patch)
    assert (patch.kind, patch.key, patch.subresource) == (POD_GROUP, KEY, "status")
    assert isinstance(patch.change, dict)
    assert patch.change["metadata"] == {"uid": "u", "resourceVersion": "7"}
    written = conditions(plan)
    assert [one["type"] for one in written] == [POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED]
    assert {one["message"] for one in written} == {NO_ROOM.message}
    assert {one["observedGeneration"] for one in written} == {4}


def test_a_group_that_is_placed_says_how_many_it_needed() -> None:
    initially, scheduled = conditions(plan_for_group(a_group(), PLACED))
    assert (initially["status"], initially["reason"]) == ("True", "Scheduled")
    assert (scheduled["status"], scheduled["reason"], scheduled["message"]) == (
        "True", "MinCountSatisfied", "All required pods (3/3) have been assigned to nodes",
    )  # fmt: skip


def test_a_group_that_only_waits_says_so_under_one_name() -> None:
    (written,) = conditions(plan_for_group(a_group(), WAITING))
    assert (written["type"], written["message"]) == (POD_GROUP_SCHEDULED, WAITING.message)


@pytest.mark.parametrize("later", [NO_ROOM, WAITING], ids=["does not fit", "waits"])
def test_once_placed_a_group_says_so_for_ever(later: ConditionUpdate) -> None:
    placed = a_group(
        existing_condition(POD_GROUP_INITIALLY_SCHEDULED, PLACED),
        existing_condition(POD_GROUP_SCHEDULED, PLACED),
    )
    assert plan_for_group(placed, later) == ReconcilePlan()


@pytest.mark.parametrize("later", [NO_ROOM, WAITING], ids=["does not fit", "waits"])
def test_that_a_group_is_placed_is_said_whatever_comes_before_it_could_be_written(
    later: ConditionUpdate,
) -> None:
    written = conditions(plan_for_group(a_group(), PLACED, later))
    assert [one["status"] for one in written] == ["True", "True"]


@builders.in_virtual_time
async def test_what_is_bound_speaks_for_itself() -> None:
    bound = [a_pod(name=f"a-{n}", uid=str(n), group="a", on="n1") for n in range(3)]
    found = reporter(bound, a_group())
    found.report_group(judged_meta(), NO_ROOM)
    initially, scheduled = conditions(found.reconcile_group(KEY))
    assert (initially["status"], scheduled["reason"]) == ("True", "MinCountSatisfied")
    two = reporter(bound[:2], a_group())
    assert two.reconcile_group(KEY) == ReconcilePlan()


@builders.in_virtual_time
async def test_the_groups_of_other_schedulers_are_theirs_to_speak_of() -> None:
    other = {"schedulerName": "another"}
    bound = [a_pod(name=f"a-{n}", uid=f"{n}", group="a", on="n1", spec=other) for n in range(3)]
    assert reporter(bound, a_group()).reconcile_group(KEY) == ReconcilePlan()
    assert reporter(bound[:1], a_group(DONE), placed=1).reconcile_group(KEY) == ReconcilePlan()


def test_a_group_that_was_made_again_is_not_told_about_its_namesake() -> None:
    assert plan_for_group(a_group(uid="new"), NO_ROOM) == ReconcilePlan()
    found = reporter(group=a_group(uid="new"))
    found.report_group(judged_meta(), PLACED)
    found.report_group(judged_meta("new"), NO_ROOM)
    assert [one["status"] for one in conditions(found.reconcile_group(KEY))] == ["False", "False"]


def test_a_group_says_of_which_generation_it_was_judged() -> None:
    written = conditions(plan_for_group(a_group(), NO_ROOM, about=judged_meta(generation=3)))
    assert {one["observedGeneration"] for one in written} == {3}
    known = [
        existing_condition(kind, NO_ROOM, generation=3)
        for kind in (POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED)
    ]
    assert {
        one["observedGeneration"] for one in conditions(plan_for_group(a_group(*known), NO_ROOM))
    } == {4}


def test_a_group_that_was_refused_can_still_be_placed() -> None:
    refused = a_group(
        existing_condition(POD_GROUP_INITIALLY_SCHEDULED, NO_ROOM),
        existing_condition(POD_GROUP_SCHEDULED, NO_ROOM),
    )
    written = conditions(plan_for_group(refused, PLACED))
    assert [one["status"] for one in written] == ["True", "True"]
    assert {one["lastTransitionTime"] for one in written} == {timestamp(NOW)}


def test_what_a_group_says_already_is_not_written_again() -> None:
    half = a_group(existing_condition(POD_GROUP_INITIALLY_SCHEDULED, NO_ROOM))
    assert [one["type"] for one in conditions(plan_for_group(half, NO_ROOM))] == [
        POD_GROUP_SCHEDULED
    ]
    whole = a_group(
        existing_condition(POD_GROUP_INITIALLY_SCHEDULED, NO_ROOM),
        existing_condition(POD_GROUP_SCHEDULED, NO_ROOM),
    )
    assert plan_for_group(whole, NO_ROOM) == ReconcilePlan()


def test_a_new_message_keeps_the_time_of_the_old_status() -> None:
    other = ConditionUpdate("False", "Unschedulable", "another sentence")
    refused = a_group(
        existing_condition(POD_GROUP_INITIALLY_SCHEDULED, NO_ROOM),
        existing_condition(POD_GROUP_SCHEDULED, NO_ROOM),
    )
    assert {one["lastTransitionTime"] for one in conditions(plan_for_group(refused, other))} == {
        BEFORE
    }


def test_of_several_verdicts_the_last_counts() -> None:
    (initially, _) = conditions(plan_for_group(a_group(), WAITING, NO_ROOM, PLACED))
    assert initially["status"] == "True"


def test_a_group_that_is_gone_is_told_nothing() -> None:
    assert plan_for_group(None, NO_ROOM) == ReconcilePlan()


DONE = existing_condition(POD_GROUP_INITIALLY_SCHEDULED, ConditionUpdate("True", "Scheduled", ""))


def test_a_placed_gang_that_loses_members_is_degraded_until_they_are_back() -> None:
    lost = patched_status(reporter(group=a_group(DONE), placed=2).reconcile_group(KEY))
    (degraded,) = lost["conditions"]
    assert (degraded["type"], degraded["status"]) == (DEGRADED, "True")
    assert degraded["message"] == "2 of 3 required members have a node or have succeeded"
    assert reporter(group=a_group(DONE, degraded), placed=2).reconcile_group(KEY) == ReconcilePlan()
    (back,) = patched_status(reporter(group=a_group(DONE, degraded)).reconcile_group(KEY))[
        "conditions"
    ]
    assert (back["type"], back["status"]) == (DEGRADED, "False")


def test_a_gang_that_was_never_placed_or_whole_is_not_degraded() -> None:
    assert reporter(group=a_group(), placed=0).reconcile_group(KEY) == ReconcilePlan()
    assert reporter(group=a_group(DONE), placed=3).reconcile_group(KEY) == ReconcilePlan()


@builders.in_virtual_time
async def test_a_group_counts_its_members_by_how_they_are() -> None:
    member = a_pod(group="a")
    found = reporter(member, a_group(), placed=0, counts=True).reconcile_group(KEY)
    assert patched_status(found) == {"pendingPods": 1}
    found = reporter(member, a_group(), placed=1, counts=True).reconcile_group(KEY)
    assert patched_status(found) == {"scheduledPods": 1}
    ended = msgspec.structs.replace(member, status=PodStatus(phase="Failed"))
    found = reporter(ended, a_group(), placed=0, counts=True).reconcile_group(KEY)
    assert patched_status(found) == {"failedPods": 1}


@builders.in_virtual_time
async def test_counts_alone_wait_for_a_quiet_moment() -> None:
    plan = reporter(a_pod(group="a"), a_group(), placed=0, counts=True, busy=True)
    assert plan.reconcile_group(KEY) == ReconcilePlan(requeue_after=COUNT_DELAY)
