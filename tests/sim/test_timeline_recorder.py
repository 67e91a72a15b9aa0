from __future__ import annotations

from phalanx.api.core import Pod, PodSpec, PodStatus, SchedulingGroup
from phalanx.api.meta import Condition, ObjectMeta
from phalanx.api.scheduling import POD_GROUP_SCHEDULED, PodGroup, PodGroupStatus
from phalanx.sim.timeline import SubjectState, describe_changes, subject_state


def pod(
    name: str, on: str = "", phase: str = "Pending", message: str = "", deleting: bool = False
) -> Pod:
    conditions = (Condition("PodScheduled", "False", message=message),) if message else ()
    deleted = "2026-01-01T00:00:00Z" if deleting else ""
    return Pod(
        ObjectMeta(name=name, uid=name, deletion_timestamp=deleted),
        PodSpec(node_name=on, scheduling_group=SchedulingGroup("g")),
        PodStatus(phase=phase, conditions=conditions),
    )


def group(status: str = "", message: str = "", deleting: bool = False) -> PodGroup:
    conditions = (Condition(POD_GROUP_SCHEDULED, status, message=message),) if status else ()
    deleted = "2026-01-01T00:00:00Z" if deleting else ""
    return PodGroup(
        ObjectMeta(name="g", deletion_timestamp=deleted), status=PodGroupStatus(conditions)
    )


def changes(before: SubjectState, after: SubjectState) -> list[tuple[str, str]]:
    return [
        (word, text or ",".join(nodes)) for word, text, nodes in describe_changes(before, after)
    ]


NOTHING = subject_state(None, [])
PENDING = subject_state(group(), [pod("a"), pod("b")])
RUNNING = subject_state(group("True"), [pod("a", "n", "Running"), pod("b", "m", "Running")])


def test_gang_with_nodes_is_placed() -> None:
    assert changes(NOTHING, PENDING) == []
    assert changes(PENDING, subject_state(group(), [pod("a", "n"), pod("b", "m")])) == [
        ("Placed", "n,m")
    ]


def test_gang_is_running_when_all_bound_members_run() -> None:
    half = subject_state(group(), [pod("a", "n", "Running"), pod("b", "m")])
    assert changes(PENDING, half) == [("Placed", "n,m")]
    assert changes(half, RUNNING) == [("Running", "2 pods")]
    assert changes(RUNNING, RUNNING) == []


def test_waiting_gang_shows_the_message_of_its_group() -> None:
    waits = subject_state(group("False", "does not fit"), [pod("a", message="0/1 nodes"), pod("b")])
    assert changes(PENDING, waits) == [("Waiting", "does not fit")]
    assert changes(waits, waits) == []


def test_leftover_members_show_their_own_message() -> None:
    rest = [pod("b", message="0/1 nodes"), pod("c", message="0/1 nodes")]
    partly = subject_state(group("True"), [pod("a", "n"), *rest])
    assert changes(PENDING, partly) == [("Placed", "n"), ("Waiting", "2 more: 0/1 nodes")]


def test_single_waiting_pod_shows_its_own_message() -> None:
    assert changes(NOTHING, subject_state(None, [pod("a", message="0/1 nodes")])) == [
        ("Waiting", "0/1 nodes")
    ]


def test_late_member_joins() -> None:
    more = subject_state(
        group("True"), [pod("a", "n", "Running"), pod("b", "m", "Running"), pod("c", "m")]
    )
    assert changes(RUNNING, more) == [("Joined", "m")]


def test_deleted_or_failed_member_is_lost() -> None:
    gone = subject_state(group("True"), [pod("a", "n", "Running")])
    failed = subject_state(group("True"), [pod("a", "n", "Running"), pod("b", "m", "Failed")])
    lost = [("Lost", "m"), ("Running", "1 pod")]
    assert changes(RUNNING, gone) == lost
    assert changes(RUNNING, failed) == lost


def test_deleted_gang_loses_no_members_and_is_gone_at_the_end() -> None:
    deleting = subject_state(
        group("True", deleting=True), [pod("a", "n", "Running", deleting=True)]
    )
    assert ("Lost", "m") not in changes(RUNNING, deleting)
    assert changes(deleting, NOTHING) == [("Gone", "")]


def test_gang_is_finished_when_all_members_succeeded() -> None:
    half = subject_state(group("True"), [pod("a", "n", "Succeeded"), pod("b", "m", "Running")])
    done = subject_state(group("True"), [pod("a", "n", "Succeeded"), pod("b", "m", "Succeeded")])
    assert changes(RUNNING, half) == [("Running", "1 pod")]
    assert changes(half, done) == [("Finished", "")]
