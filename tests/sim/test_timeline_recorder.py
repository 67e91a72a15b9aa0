from __future__ import annotations

from phalanx.api.core import Pod, PodSpec, PodStatus, SchedulingGroup
from phalanx.api.meta import Condition, ObjectMeta
from phalanx.api.scheduling import POD_GROUP_SCHEDULED, PodGroup, PodGroupStatus
from phalanx.sim.timeline import SubjectState, describe_changes, subject_state


def pod(
    name: str, on: str = "", phase: str = "Pending", why: str = "", leaving: bool = False
) -> Pod:
    said = (Condition("PodScheduled", "False", message=why),) if why else ()
    deleted = "2026-01-01T00:00:00Z" if leaving else ""
    return Pod(
        ObjectMeta(name=name, uid=name, deletion_timestamp=deleted),
        PodSpec(node_name=on, scheduling_group=SchedulingGroup("g")),
        PodStatus(phase=phase, conditions=said),
    )


def group(status: str = "", why: str = "", leaving: bool = False) -> PodGroup:
    said = (Condition(POD_GROUP_SCHEDULED, status, message=why),) if status else ()
    deleted = "2026-01-01T00:00:00Z" if leaving else ""
    return PodGroup(ObjectMeta(name="g", deletion_timestamp=deleted), status=PodGroupStatus(said))


def told(before: SubjectState, after: SubjectState) -> list[tuple[str, str]]:
    return [
        (word, text or ",".join(nodes)) for word, text, nodes in describe_changes(before, after)
    ]


NOTHING = subject_state(None, [])
PENDING = subject_state(group(), [pod("a"), pod("b")])
RUNNING = subject_state(group("True"), [pod("a", "n", "Running"), pod("b", "m", "Running")])


def test_a_gang_that_gets_nodes_is_placed() -> None:
    assert told(NOTHING, PENDING) == []
    assert told(PENDING, subject_state(group(), [pod("a", "n"), pod("b", "m")])) == [
        ("Placed", "n,m")
    ]


def test_a_gang_runs_when_all_that_have_nodes_run() -> None:
    half = subject_state(group(), [pod("a", "n", "Running"), pod("b", "m")])
    assert told(PENDING, half) == [("Placed", "n,m")]
    assert told(half, RUNNING) == [("Running", "2 pods")]
    assert told(RUNNING, RUNNING) == []


def test_a_gang_waits_in_the_words_of_its_group() -> None:
    waits = subject_state(group("False", "no room"), [pod("a", why="0/1 nodes"), pod("b")])
    assert told(PENDING, waits) == [("Waiting", "no room")]
    assert told(waits, waits) == []


def test_members_left_over_wait_in_their_own_words() -> None:
    rest = [pod("b", why="0/1 nodes"), pod("c", why="0/1 nodes")]
    partly = subject_state(group("True"), [pod("a", "n"), *rest])
    assert told(PENDING, partly) == [("Placed", "n"), ("Waiting", "2 more: 0/1 nodes")]


def test_a_pod_alone_waits_in_its_own_words() -> None:
    assert told(NOTHING, subject_state(None, [pod("a", why="0/1 nodes")])) == [
        ("Waiting", "0/1 nodes")
    ]


def test_a_member_that_comes_later_joins() -> None:
    more = subject_state(
        group("True"), [pod("a", "n", "Running"), pod("b", "m", "Running"), pod("c", "m")]
    )
    assert told(RUNNING, more) == [("Joined", "m")]


def test_a_member_that_goes_or_fails_is_lost() -> None:
    gone = subject_state(group("True"), [pod("a", "n", "Running")])
    failed = subject_state(group("True"), [pod("a", "n", "Running"), pod("b", "m", "Failed")])
    lost = [("Lost", "m"), ("Running", "1 pod")]
    assert told(RUNNING, gone) == lost
    assert told(RUNNING, failed) == lost


def test_a_gang_that_is_deleted_loses_nobody_and_is_gone_at_last() -> None:
    leaving = subject_state(group("True", leaving=True), [pod("a", "n", "Running", leaving=True)])
    assert ("Lost", "m") not in told(RUNNING, leaving)
    assert told(leaving, NOTHING) == [("Gone", "")]


def test_a_gang_is_finished_when_all_members_ended_well() -> None:
    half = subject_state(group("True"), [pod("a", "n", "Succeeded"), pod("b", "m", "Running")])
    done = subject_state(group("True"), [pod("a", "n", "Succeeded"), pod("b", "m", "Succeeded")])
    assert told(RUNNING, half) == [("Running", "1 pod")]
    assert told(half, done) == [("Finished", "")]
