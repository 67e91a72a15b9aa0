"""Written conditions as a function of reported results and current conditions."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.api.core import Pod, PodStatus
from phalanx.api.errors import ServerError
from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.meta import Condition, Key, ObjectMeta, pod_group_ref, timestamp
from phalanx.api.scheduling import (
    DEGRADED,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_SCHEDULED,
    PodGroup,
    PodGroupStatus,
)
from phalanx.api.wire import ANONYMOUS, STRATEGIC_PATCH, Object, Reply, Request
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.protocol import Listing
from phalanx.client.transports import InProcessTransport
from phalanx.controllers.reconcile_loop import Patch, ReconcilePlan
from phalanx.controllers.scheduling.group_reports import SHORTFALL_INTERVAL
from phalanx.controllers.scheduling.status_writer import (
    COUNT_DELAY,
    ConditionUpdate,
    SchedulerView,
    SchedulingStatusWriter,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.shortfall import GroupShortfall
from tests import builders

NOW = 1_800_000_000.0
BEFORE = "2027-01-01T00:00:00Z"
KEY = Key("default", "a")
UNSCHEDULABLE = ConditionUpdate(
    "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu."
)
WAITING = ConditionUpdate(
    "False", "NotReadyForScheduling", "waiting for 3 members, 2 are there", is_pending=True
)
PLACED = ConditionUpdate("True", "Scheduled", "", quorum=3)


class FrozenClock:
    def now(self) -> float:
        return NOW


async def refuse_request(request: Request) -> Reply:
    raise ServerError("a reconcile sends no request")


def existing_condition(kind: str, update: ConditionUpdate, generation: int = 4) -> Object:
    """An existing condition with this content."""
    return {
        "type": kind, "status": update.status, "reason": update.reason,
        "message": update.message, "lastTransitionTime": BEFORE,
        "observedGeneration": generation,
    }  # fmt: skip


def make_pod(
    *conditions: Object, name: str = "a", uid: str = "u", nominated: str = "", **more: object
) -> Pod:
    made = builders.pod(name, **more)  # type: ignore[arg-type]
    made["metadata"] |= {"uid": uid, "resourceVersion": "7"}
    status = {"conditions": list(conditions), "nominatedNodeName": nominated}
    return msgspec.convert({**made, "status": status}, Pod)


def make_group(*conditions: Object, uid: str = "u") -> PodGroup:
    made = builders.pod_group("a", 3)
    made["metadata"] |= {"uid": uid, "resourceVersion": "7", "generation": 4}
    return msgspec.convert({**made, "status": {"conditions": list(conditions)}}, PodGroup)


def tried_meta(uid: str = "u", generation: int = 4) -> ObjectMeta:
    """The metadata of the object that was tried."""
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
    view = SchedulerView(
        lambda key: placed, lambda: busy, lambda key: counts, ["default-scheduler"]
    )
    return SchedulingStatusWriter(
        Client(InProcessTransport(refuse_request, ANONYMOUS)),
        pods,
        groups,
        clock=FrozenClock(),
        scheduler_view=view,
    )


def plan_for_pod(pod: Pod | None, update: ConditionUpdate, uid: str = "u") -> ReconcilePlan:
    found = reporter(pod)
    found.report_pod(tried_meta(uid), update)
    return found.reconcile_pod(KEY)


def plan_for_group(
    group: PodGroup | None, *updates: ConditionUpdate, about: ObjectMeta | None = None
) -> ReconcilePlan:
    found = reporter(group=group)
    for update in updates:
        found.report_group(about or tried_meta(), update)
    return found.reconcile_group(KEY)


def patched_status(plan: ReconcilePlan) -> Object:
    """The status that a plan of one patch writes."""
    (patch,) = plan.actions
    assert isinstance(patch, Patch)
    assert isinstance(patch.change, dict)
    status: Object = patch.change["status"]
    return status


def conditions(plan: ReconcilePlan) -> list[Object]:
    """The conditions that a plan writes."""
    written: list[Object] = patched_status(plan)["conditions"]
    return written


# ---- pods ----------------------------------------------------------------------------------------


def test_a_pod_gets_the_reason_why_it_has_no_node() -> None:
    (patch,) = plan_for_pod(make_pod(), UNSCHEDULABLE).actions
    assert patch == Patch(
        POD, KEY,
        {
            "metadata": {"uid": "u", "resourceVersion": "7"},
            "status": {"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": UNSCHEDULABLE.message, "lastTransitionTime": timestamp(NOW),
                "lastProbeTime": None,
            }]},
        },
        "status", STRATEGIC_PATCH,
    )  # fmt: skip


def test_an_unchanged_pod_condition_is_not_written() -> None:
    assert (
        plan_for_pod(make_pod(existing_condition("PodScheduled", UNSCHEDULABLE)), UNSCHEDULABLE)
        == ReconcilePlan()
    )


def test_a_new_reason_keeps_the_time_of_the_old_status() -> None:
    (written,) = conditions(
        plan_for_pod(make_pod(existing_condition("PodScheduled", WAITING)), UNSCHEDULABLE)
    )
    assert (written["reason"], written["lastTransitionTime"]) == ("Unschedulable", BEFORE)


def test_a_new_status_has_a_new_time() -> None:
    (written,) = conditions(
        plan_for_pod(make_pod(existing_condition("PodScheduled", PLACED)), UNSCHEDULABLE)
    )
    assert written["lastTransitionTime"] == timestamp(NOW)


def test_the_condition_of_a_gated_pod_stays() -> None:
    gated = ConditionUpdate("False", "SchedulingGated", "Scheduling is blocked due to gates")
    held = make_pod(existing_condition("PodScheduled", gated), gates=["wait"])
    assert plan_for_pod(held, WAITING) == plan_for_pod(held, UNSCHEDULABLE) == ReconcilePlan()
    free = make_pod(existing_condition("PodScheduled", gated))
    assert conditions(plan_for_pod(free, UNSCHEDULABLE))[0]["reason"] == "Unschedulable"


@pytest.mark.parametrize(
    "pod", [None, make_pod(uid="another"), make_pod(on="n1")], ids=["deleted", "recreated", "bound"]
)
def test_a_pod_that_is_bound_or_recreated_is_not_written(pod: Pod | None) -> None:
    assert plan_for_pod(pod, UNSCHEDULABLE) == ReconcilePlan()


@pytest.mark.parametrize(
    "known", [(), (existing_condition("PodScheduled", UNSCHEDULABLE),)], ids=["new", "known"]
)
def test_an_unschedulable_pod_loses_its_nomination(
    known: tuple[Object, ...],
) -> None:
    refused = patched_status(plan_for_pod(make_pod(*known, nominated="n1"), UNSCHEDULABLE))
    assert refused["nominatedNodeName"] is None
    assert ("conditions" in refused) == (not known)


def test_a_pod_that_cannot_be_tried_keeps_its_nomination() -> None:
    assert "nominatedNodeName" not in patched_status(
        plan_for_pod(make_pod(nominated="n1"), WAITING)
    )


@pytest.mark.parametrize(
    ("priority", "node", "loses"), [(9, "n1", True), (0, "n1", False), (9, "n2", False)]
)
def test_a_bind_of_higher_priority_voids_nominations(priority: int, node: str, loses: bool) -> None:
    found = reporter(make_pod(nominated="n1"))
    found.void_nominations(node, priority)
    plan = found.reconcile_pod(KEY)
    assert (plan != ReconcilePlan()) == loses
    if loses:
        assert patched_status(plan) == {"nominatedNodeName": None}


def test_without_a_result_nothing_is_written() -> None:
    assert reporter(make_pod(), make_group()).reconcile_pod(KEY) == ReconcilePlan()
    assert reporter(make_pod(), make_group()).reconcile_group(KEY) == ReconcilePlan()


# ---- groups --------------------------------------------------------------------------------------


def test_an_unschedulable_group_has_both_conditions() -> None:
    plan = plan_for_group(make_group(), UNSCHEDULABLE)
    (patch,) = plan.actions
    assert isinstance(patch, Patch)
    assert (patch.kind, patch.key, patch.subresource) == (POD_GROUP, KEY, "status")
    assert isinstance(patch.change, dict)
    assert patch.change["metadata"] == {"uid": "u", "resourceVersion": "7"}
    written = conditions(plan)
    assert [one["type"] for one in written] == [POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED]
    assert {one["message"] for one in written} == {UNSCHEDULABLE.message}
    assert {one["observedGeneration"] for one in written} == {4}


def test_a_placed_group_has_the_number_of_required_members() -> None:
    initially, scheduled = conditions(plan_for_group(make_group(), PLACED))
    assert (initially["status"], initially["reason"]) == ("True", "Scheduled")
    assert (scheduled["status"], scheduled["reason"], scheduled["message"]) == (
        "True", "MinCountSatisfied", "All required pods (3/3) have been assigned to nodes",
    )  # fmt: skip


def test_a_pending_group_has_one_condition() -> None:
    (written,) = conditions(plan_for_group(make_group(), WAITING))
    assert (written["type"], written["message"]) == (POD_GROUP_SCHEDULED, WAITING.message)


@pytest.mark.parametrize("later", [UNSCHEDULABLE, WAITING], ids=["does not fit", "waits"])
def test_a_scheduled_condition_stays(later: ConditionUpdate) -> None:
    placed = make_group(
        existing_condition(POD_GROUP_INITIALLY_SCHEDULED, PLACED),
        existing_condition(POD_GROUP_SCHEDULED, PLACED),
    )
    assert plan_for_group(placed, later) == ReconcilePlan()


@pytest.mark.parametrize("later", [UNSCHEDULABLE, WAITING], ids=["does not fit", "waits"])
def test_a_scheduled_result_is_not_replaced_before_it_is_written(
    later: ConditionUpdate,
) -> None:
    written = conditions(plan_for_group(make_group(), PLACED, later))
    assert [one["status"] for one in written] == ["True", "True"]


@builders.in_virtual_time
async def test_a_group_with_enough_bound_members_is_scheduled() -> None:
    bound = [make_pod(name=f"a-{n}", uid=str(n), group="a", on="n1") for n in range(3)]
    found = reporter(bound, make_group())
    found.report_group(tried_meta(), UNSCHEDULABLE)
    initially, scheduled = conditions(found.reconcile_group(KEY))
    assert (initially["status"], scheduled["reason"]) == ("True", "MinCountSatisfied")
    two = reporter(bound[:2], make_group())
    assert two.reconcile_group(KEY) == ReconcilePlan()


@builders.in_virtual_time
async def test_groups_of_other_schedulers_are_not_written() -> None:
    other = {"schedulerName": "another"}
    bound = [make_pod(name=f"a-{n}", uid=f"{n}", group="a", on="n1", spec=other) for n in range(3)]
    assert reporter(bound, make_group()).reconcile_group(KEY) == ReconcilePlan()
    assert reporter(bound[:1], make_group(DONE), placed=1).reconcile_group(KEY) == ReconcilePlan()


def test_a_recreated_group_does_not_get_the_result_of_the_old_one() -> None:
    assert plan_for_group(make_group(uid="new"), UNSCHEDULABLE) == ReconcilePlan()
    found = reporter(group=make_group(uid="new"))
    found.report_group(tried_meta(), PLACED)
    found.report_group(tried_meta("new"), UNSCHEDULABLE)
    assert [one["status"] for one in conditions(found.reconcile_group(KEY))] == ["False", "False"]


def test_a_condition_has_the_generation_that_was_tried() -> None:
    written = conditions(
        plan_for_group(make_group(), UNSCHEDULABLE, about=tried_meta(generation=3))
    )
    assert {one["observedGeneration"] for one in written} == {3}
    known = [
        existing_condition(kind, UNSCHEDULABLE, generation=3)
        for kind in (POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED)
    ]
    assert {
        one["observedGeneration"]
        for one in conditions(plan_for_group(make_group(*known), UNSCHEDULABLE))
    } == {4}


def test_an_unschedulable_group_can_become_scheduled() -> None:
    refused = make_group(
        existing_condition(POD_GROUP_INITIALLY_SCHEDULED, UNSCHEDULABLE),
        existing_condition(POD_GROUP_SCHEDULED, UNSCHEDULABLE),
    )
    written = conditions(plan_for_group(refused, PLACED))
    assert [one["status"] for one in written] == ["True", "True"]
    assert {one["lastTransitionTime"] for one in written} == {timestamp(NOW)}


def test_an_unchanged_group_condition_is_not_written() -> None:
    half = make_group(existing_condition(POD_GROUP_INITIALLY_SCHEDULED, UNSCHEDULABLE))
    assert [one["type"] for one in conditions(plan_for_group(half, UNSCHEDULABLE))] == [
        POD_GROUP_SCHEDULED
    ]
    whole = make_group(
        existing_condition(POD_GROUP_INITIALLY_SCHEDULED, UNSCHEDULABLE),
        existing_condition(POD_GROUP_SCHEDULED, UNSCHEDULABLE),
    )
    assert plan_for_group(whole, UNSCHEDULABLE) == ReconcilePlan()


def test_a_new_message_keeps_the_time_of_the_old_status() -> None:
    other = ConditionUpdate("False", "Unschedulable", "another sentence")
    refused = make_group(
        existing_condition(POD_GROUP_INITIALLY_SCHEDULED, UNSCHEDULABLE),
        existing_condition(POD_GROUP_SCHEDULED, UNSCHEDULABLE),
    )
    assert {one["lastTransitionTime"] for one in conditions(plan_for_group(refused, other))} == {
        BEFORE
    }


def test_the_latest_result_counts() -> None:
    (initially, _) = conditions(plan_for_group(make_group(), WAITING, UNSCHEDULABLE, PLACED))
    assert initially["status"] == "True"


def test_a_deleted_group_is_not_written() -> None:
    assert plan_for_group(None, UNSCHEDULABLE) == ReconcilePlan()


DONE = existing_condition(POD_GROUP_INITIALLY_SCHEDULED, ConditionUpdate("True", "Scheduled", ""))


def test_a_placed_gang_is_degraded_while_members_are_missing() -> None:
    lost = patched_status(reporter(group=make_group(DONE), placed=2).reconcile_group(KEY))
    (degraded,) = lost["conditions"]
    assert (degraded["type"], degraded["status"]) == (DEGRADED, "True")
    assert degraded["message"] == "2 of 3 required members have a node or have succeeded"
    assert (
        reporter(group=make_group(DONE, degraded), placed=2).reconcile_group(KEY) == ReconcilePlan()
    )
    (back,) = patched_status(reporter(group=make_group(DONE, degraded)).reconcile_group(KEY))[
        "conditions"
    ]
    assert (back["type"], back["status"]) == (DEGRADED, "False")


def test_a_gang_that_was_never_placed_is_not_degraded() -> None:
    assert reporter(group=make_group(), placed=0).reconcile_group(KEY) == ReconcilePlan()
    assert reporter(group=make_group(DONE), placed=3).reconcile_group(KEY) == ReconcilePlan()


@builders.in_virtual_time
async def test_members_are_counted_by_phase() -> None:
    member = make_pod(group="a")
    found = reporter(member, make_group(), placed=0, counts=True).reconcile_group(KEY)
    assert patched_status(found) == {"pendingPods": 1, "desiredPods": 3}
    found = reporter(member, make_group(), placed=1, counts=True).reconcile_group(KEY)
    assert patched_status(found) == {"scheduledPods": 1, "desiredPods": 3}
    ended = msgspec.structs.replace(member, status=PodStatus(phase="Failed"))
    found = reporter(ended, make_group(), placed=0, counts=True).reconcile_group(KEY)
    assert patched_status(found) == {"failedPods": 1}


@builders.in_virtual_time
async def test_ready_members_are_counted_while_they_run() -> None:
    is_ready = (Condition(type="Ready", status="True"),)
    running = PodStatus(phase="Running", conditions=is_ready)
    member = msgspec.structs.replace(make_pod(group="a"), status=running)
    found = reporter(member, make_group(), placed=1, counts=True).reconcile_group(KEY)
    assert patched_status(found) == {"scheduledPods": 1, "desiredPods": 3, "readyPods": 1}
    leaving = msgspec.structs.replace(member.metadata, deletion_timestamp="2027-01-15T08:00:00Z")
    for changed in (
        msgspec.structs.replace(member, metadata=leaving),
        msgspec.structs.replace(member, status=PodStatus(phase="Running")),
        msgspec.structs.replace(member, status=PodStatus(phase="Succeeded", conditions=is_ready)),
    ):
        counted = PodGroupStatus(ready_pods=1)
        group = msgspec.structs.replace(make_group(), status=counted)
        found = reporter(changed, group, placed=0, counts=True).reconcile_group(KEY)
        assert patched_status(found)["readyPods"] == 0


@builders.in_virtual_time
async def test_changed_counts_wait_until_the_scheduler_is_idle() -> None:
    plan = reporter(make_pod(group="a"), make_group(), placed=0, counts=True, busy=True)
    assert plan.reconcile_group(KEY) == ReconcilePlan(requeue_after=COUNT_DELAY)


@builders.in_virtual_time
async def test_changed_shortfall_is_written_with_other_changes_or_after_an_interval() -> None:
    entity = Entity(pod_group_ref(KEY), make_group(), ())
    waiting = msgspec.structs.replace(make_group(), status=PodGroupStatus(pending_pods=1))
    found = reporter(make_pod(group="a"), waiting, placed=0, counts=True)
    found.report_shortfall(GroupShortfall(entity, {"missingMembers": 2}, ""))
    status = patched_status(found.reconcile_group(KEY))
    assert (status["desiredPods"], status["shortfall"]) == (3, {"missingMembers": 2})
    written = PodGroupStatus(pending_pods=1, desired_pods=3, shortfall={"missingMembers": 2})
    found = reporter(
        make_pod(group="a"), msgspec.structs.replace(waiting, status=written), placed=0, counts=True
    )
    found.report_shortfall(GroupShortfall(entity, {"missingMembers": 1}, ""))
    assert patched_status(found.reconcile_group(KEY)) == {"shortfall": {"missingMembers": 1}}
    # The cache does not show the write yet, and the numbers change again.
    found.report_shortfall(GroupShortfall(entity, {"missingMembers": 3}, ""))
    assert found.reconcile_group(KEY) == ReconcilePlan(requeue_after=SHORTFALL_INTERVAL)
    found.report_group(tried_meta(), UNSCHEDULABLE)
    status = patched_status(found.reconcile_group(KEY))
    assert (len(status["conditions"]), status["shortfall"]) == (2, {"missingMembers": 3})
