"""Losses, preemptors and shortfalls of PodGroups, as the status writer gets them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from phalanx.api.kinds import POD_GROUP
from phalanx.api.meta import Key, pod_group_ref
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION, PodGroup
from phalanx.api.wire import Object
from phalanx.controllers.scheduling.group_reports import (
    SHORTFALL_INTERVAL,
    GroupCondition,
    GroupReports,
    PresentMembers,
    build_shortfall_patch,
    read_annotated_shortfall,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.shortfall import GroupShortfall
from tests import builders
from tests.controllers.foreign_cluster import (
    ScriptedTransport,
    foreign_cluster,
    running_scheduler,
)

KEY = Key("default", "a")
MESSAGE = "2 of 3 required members have a node or have succeeded"


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
    }


SCHEDULED = condition("PodGroupInitiallyScheduled", reason="Scheduled")


def group(
    *conditions: Object, annotations: dict[str, str] | None = None, uid: str = "u", **status: Any
) -> PodGroup:
    """A gang of three of generation 2, which was scheduled in generation 1."""
    made = builders.pod_group("a", 3)
    made["metadata"] |= {"uid": uid, "generation": 2, "annotations": annotations or {}}
    listed = {"conditions": list(conditions), **status}
    return msgspec.convert({**made, "status": listed}, PodGroup)


def shortfall(missing: int, message: str = "the rack is full") -> GroupShortfall:
    entity = Entity(pod_group_ref(KEY), group(), ())
    return GroupShortfall(entity, {"missingMembers": missing} if missing else {}, message)


def placed(count: int, succeeded: int = 0) -> PresentMembers:
    return PresentMembers(count, succeeded)


def test_loss_is_a_count_below_the_status() -> None:
    was: Object = {"scheduledPods": 3, "desiredPods": 3}
    lost = GroupReports().change_degraded(group(SCHEDULED, **was), placed(2))
    assert lost == GroupCondition("True", "MembersLost", MESSAGE)
    grown: Object = {"scheduledPods": 2, "desiredPods": 3}
    assert GroupReports().change_degraded(group(SCHEDULED, **grown), placed(2)) is None


def test_losses_among_the_last_members_count_although_others_have_succeeded() -> None:
    was: Object = {"scheduledPods": 1, "succeededPods": 2, "desiredPods": 3}
    one = group(SCHEDULED, annotations={MEMBERS_TO_RUN_ANNOTATION: "1"}, **was)
    lost = GroupReports().change_degraded(one, placed(0, succeeded=2))
    assert lost == GroupCondition("True", "MembersLost", MESSAGE)
    degraded = condition("Degraded", reason="MembersLost")
    back = group(SCHEDULED, degraded, annotations={MEMBERS_TO_RUN_ANNOTATION: "1"}, **was)
    message = "3 of 3 required members have a node or have succeeded"
    found = GroupReports().change_degraded(back, placed(1, succeeded=2))
    assert found == GroupCondition("False", "MembersBack", message)


def test_member_that_succeeded_or_whose_pod_was_removed_is_not_lost() -> None:
    was: Object = {"scheduledPods": 3, "desiredPods": 3}
    one = group(SCHEDULED, annotations={"phalanx.dev/members-to-run": "2"}, **was)
    assert GroupReports().change_degraded(one, placed(1, 2)) is None
    ended = group(SCHEDULED, scheduledPods=1, succeededPods=2, desiredPods=3)
    assert GroupReports().change_degraded(ended, placed(1, 0)) is None


def test_loss_is_seen_without_counts_in_the_status() -> None:
    reports, one = GroupReports(), group(SCHEDULED)
    assert reports.change_degraded(one, placed(2)) is None  # minCount grew since generation 1.
    reports.see_members(KEY, placed(3))
    assert reports.change_degraded(one, placed(2)) is not None
    reports.forget(KEY)
    assert reports.change_degraded(one, placed(2)) is None
    same = group(SCHEDULED | {"observedGeneration": 2})
    assert GroupReports().change_degraded(same, placed(2)) is not None


def test_degraded_names_what_would_help_once_the_replacement_was_refused() -> None:
    reports = GroupReports()
    one = group(SCHEDULED, condition("Degraded", "True", "MembersLost", MESSAGE))
    assert reports.change_degraded(one, placed(2)) is None
    assert reports.set_shortfall(one, shortfall(1))
    blocked = GroupCondition("True", "ReplacementUnschedulable", f"{MESSAGE}; the rack is full")
    assert reports.change_degraded(one, placed(2)) == blocked
    written = group(SCHEDULED, condition("Degraded", *blocked))
    assert reports.change_degraded(written, placed(2)) is None
    # Nothing is left of the gang: it waits like any other.
    assert reports.change_degraded(written, placed(0)) == GroupCondition(
        "True", "MembersLost", MESSAGE.replace("2", "0", 1)
    )
    assert reports.change_degraded(written, placed(3)) == GroupCondition(
        "False", "MembersBack", MESSAGE.replace("2", "3", 1)
    )


def test_finished_gang_is_not_degraded() -> None:
    done = {"phalanx.dev/finished": "Complete"}
    degraded = condition("Degraded", "True", "MembersLost", MESSAGE)
    ended = GroupReports().change_degraded(group(SCHEDULED, degraded, annotations=done), placed(0))
    assert ended is not None
    assert (ended.status, ended.reason) == ("False", "Finished")
    was: Object = {"scheduledPods": 3, "desiredPods": 3}
    assert (
        GroupReports().change_degraded(group(SCHEDULED, annotations=done, **was), placed(0)) is None
    )


def test_preemptor_is_written_once_and_not_for_a_later_group() -> None:
    reports, one = GroupReports(), group(SCHEDULED)
    assert reports.change_preempted(one) is None
    reports.set_preemptor(one, "PodGroup default/urgent")
    update = reports.change_preempted(one)
    assert update == (
        "True",
        "PreemptionByScheduler",
        "Preempted by PodGroup default/urgent",
    )
    assert reports.change_preempted(group(condition("Preempted", *update))) is None
    assert reports.change_preempted(group(uid="later")) is None
    reports.end_preemption(KEY)
    assert reports.change_preempted(one) is None


def test_shortfall_stays_until_an_attempt_changes_it() -> None:
    reports, one, written = GroupReports(), group(), {"missingMembers": 2}
    assert reports.find_shortfall(one, written, has_quorum=False) == written
    assert reports.find_shortfall(one, written, has_quorum=True) == {}
    assert not reports.set_shortfall(one, shortfall(0, ""))
    assert reports.set_shortfall(one, shortfall(1))
    assert not reports.set_shortfall(one, shortfall(1))
    assert reports.find_shortfall(one, written, has_quorum=False) == {"missingMembers": 1}
    done = group(annotations={"phalanx.dev/finished": "Complete"})
    assert reports.find_shortfall(done, written, has_quorum=False) == {}
    begun = group(annotations={"phalanx.dev/binding-intent": "7"})
    assert reports.find_shortfall(begun, written, has_quorum=False) == written
    assert reports.set_shortfall(group(shortfall=written), shortfall(0, ""))


def test_changed_numbers_wait_for_the_interval() -> None:
    reports = GroupReports()
    assert reports.delay_shortfall(KEY, 100.0) == 0
    reports.record_shortfall_write(KEY, 100.0)
    assert reports.delay_shortfall(KEY, 103.0) == SHORTFALL_INTERVAL - 3
    assert reports.delay_shortfall(KEY, 100.0 + SHORTFALL_INTERVAL) == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [("", {}), ("{", {}), ("[]", {}), ('{"missingMembers":1}', {"missingMembers": 1})],
)
def test_malformed_annotation_counts_as_none(text: str, found: Object) -> None:
    annotations = {"phalanx.dev/shortfall": text} if text else {}
    assert read_annotated_shortfall(group(annotations=annotations)) == found


def test_patch_removes_fields_that_no_longer_apply() -> None:
    old = {"missingMembers": 2, "domain": "r1"}
    assert build_shortfall_patch(old, {"missingMembers": 1}) == {
        "missingMembers": 1,
        "domain": None,
    }
    assert build_shortfall_patch(old, {}) is None


@builders.in_virtual_time
async def test_foreign_server_has_the_shortfall_in_an_annotation() -> None:
    async with foreign_cluster(2, cpu="1") as c, running_scheduler(c, ScriptedTransport(c)):
        await c.create(*builders.gang("a", 3, cpu="1"))
        await asyncio.sleep(10)
        found = await c.client.get(POD_GROUP, KEY, PodGroup)
        assert read_annotated_shortfall(found) == {
            "missingMembers": 1,
            "requests": [{"members": 1, "resources": {"cpu": "1"}}],
        }
        assert found.status.shortfall is None
        await c.add_node(builders.node("more", cpu="1"))
        await c.until_placed("a-0", "a-1", "a-2")
        await asyncio.sleep(10)
        found = await c.client.get(POD_GROUP, KEY, PodGroup)
        assert "phalanx.dev/shortfall" not in found.metadata.annotations
