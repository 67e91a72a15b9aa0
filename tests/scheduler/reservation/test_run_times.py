"""When pods are expected to end, by the source that knows it first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from phalanx.api.batch import (
    EXPECTED_RUN_TIME_ANNOTATION,
    Job,
    JobRunTime,
    JobSpec,
    JobStatus,
    job_run_time,
    parse_run_time,
)
from phalanx.api.core import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
)
from phalanx.api.meta import Key, ObjectMeta, OwnerReference, timestamp
from phalanx.scheduler.reservation.run_times import RunTimes
from tests.scheduler.builders import entity, gang, key, pod
from tests.scheduler.reservation.virtual_scheduler import ending_pod, job_owner

ANNOTATED = {EXPECTED_RUN_TIME_ANNOTATION: "20m"}


def end_of(run_times: RunTimes, name: str = "a") -> float | None:
    for _ in run_times.update():
        pass
    return run_times.ends.end_of(key(name))


def annotate(one: Pod, text: str) -> Pod:
    meta = replace(one.metadata, annotations={EXPECTED_RUN_TIME_ANNOTATION: text})
    return replace(one, metadata=meta)


def succeeded(name: str, start: float, end: float, owner: OwnerReference | None) -> Pod:
    finished = ContainerState(ContainerStateTerminated(0, timestamp(end)))
    one = ending_pod(name, on="n", owner=owner, started=timestamp(start))
    status = replace(
        one.status, phase="Succeeded", container_statuses=(ContainerStatus(state=finished),)
    )
    return replace(one, status=status)


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (lambda one, times: replace(one, spec=replace(one.spec, active_deadline_seconds=60)), 160),
        (lambda one, times: annotate(one, "2m"), 220),
        (lambda one, times: annotate(one, "1.5h"), 5500),
        (lambda one, times: annotate(one, "soon"), float("inf")),
        (lambda one, times: annotate(one, "-1s"), float("inf")),
        (lambda one, times: one, float("inf")),
    ],
)
def test_end_follows_from_the_pod(prepare: Callable[[Pod, RunTimes], Pod], expected: float) -> None:
    run_times = RunTimes()
    one = prepare(ending_pod("a", on="n", started=timestamp(100)), run_times)
    run_times.observe_pod(key("a"), one, 500.0)
    assert end_of(run_times) == expected


def test_a_pod_that_runs_until_it_is_deleted_is_not_kept() -> None:
    run_times, one = RunTimes(), pod("a", on="n")
    run_times.observe_pod(key("a"), one, 0.0)
    assert not run_times._changed
    limited = annotate(one, "2m")
    run_times.observe_pod(key("a"), limited, 0.0)
    assert end_of(run_times) == 120
    run_times.observe_pod(key("a"), one, 0.0)
    assert end_of(run_times) is None
    deleted = replace(one, metadata=replace(one.metadata, deletion_timestamp=timestamp(300)))
    run_times.observe_pod(key("a"), deleted, 0.0)
    assert end_of(run_times) == 300


def test_deadline_counts_before_the_annotation_and_the_earlier_deadline_wins() -> None:
    run_times = RunTimes()
    one = ending_pod("a", on="n", seconds=1000, expected="10s", owner=job_owner("j"))
    run_times.observe_pod(key("a"), one, 100.0)
    assert end_of(run_times) == 1100
    run_times.observe_job(key("j"), JobRunTime("uid-j", 500, 50.0))
    assert end_of(run_times) == 550
    run_times.observe_job(key("j"), None)
    assert end_of(run_times) == 1100


def test_annotations_of_pod_group_and_job_count_in_this_order() -> None:
    run_times = RunTimes()
    one = ending_pod("a", "g", on="n", owner=job_owner("j"))
    run_times.observe_pod(key("a"), one, 0.0)
    run_times.observe_job(key("j"), JobRunTime("uid-j", expected_run_time=10.0))
    assert end_of(run_times) == 10
    run_times.observe_group(key("g"), ObjectMeta(annotations=ANNOTATED))
    assert end_of(run_times) == 1200
    run_times.observe_pod(key("a"), annotate(one, "5s"), 3.0)
    assert end_of(run_times) == 5
    run_times.observe_pod(key("a"), one, 3.0)
    run_times.observe_group(key("g"), None)
    assert end_of(run_times) == 10


def test_median_of_earlier_pods_of_the_owner_counts_before_that_of_the_template() -> None:
    run_times = RunTimes()
    for number, seconds in enumerate((10, 20, 90)):
        run_times.observe_pod(
            key(f"x{number}"), succeeded(f"x{number}", 0, seconds, job_owner("other")), 100.0
        )
    run_times.observe_pod(key("a"), ending_pod("a", on="n", owner=job_owner("j")), 0.0)
    assert end_of(run_times) == 20
    run_times.observe_pod(key("y"), succeeded("y", 0, 70, job_owner("j")), 100.0)
    run_times.observe_pod(key("b"), ending_pod("b", on="n", owner=job_owner("j")), 0.0)
    assert end_of(run_times, "b") == 70


def test_run_time_without_times_in_the_status_is_measured_from_the_observations() -> None:
    run_times = RunTimes()
    one = ending_pod("x", on="n")
    run_times.observe_pod(key("x"), one, 100.0)
    run_times.observe_pod(
        key("x"), replace(one, status=replace(one.status, phase="Succeeded")), 130.0
    )
    run_times.observe_pod(key("a"), ending_pod("a", on="n"), 200.0)
    assert end_of(run_times) == 230
    assert end_of(run_times, "x") is None


def test_median_is_no_declared_limit() -> None:
    run_times = RunTimes()
    run_times.observe_pod(key("x"), succeeded("x", 0, 10, None), 100.0)
    waiting = entity(gang("g", 1), [ending_pod("a", "g")])
    assert run_times.declared_end(waiting, 0.0) is None
    assert run_times.end_after(waiting, 50.0) == 60.0


def test_declared_end_of_a_gang_is_that_of_its_last_member() -> None:
    run_times = RunTimes()
    pods = [ending_pod("a", "g", seconds=10), ending_pod("b", "g", expected="1m")]
    assert run_times.declared_end(entity(gang("g", 2), pods), 100.0) == 160
    more = [*pods, ending_pod("c", "g")]
    assert run_times.declared_end(entity(gang("g", 3), more), 100.0) is None


def test_pods_of_one_spec_end_by_the_limits_of_their_own_jobs_and_annotations() -> None:
    run_times = RunTimes()
    run_times.observe_job(key("j"), JobRunTime("uid-j", expected_run_time=10.0))
    run_times.observe_job(key("k"), JobRunTime("uid-k", expected_run_time=30.0))
    first = ending_pod("a", "g", owner=job_owner("j"))
    second = replace(ending_pod("b", "g", owner=job_owner("k")), spec=first.spec)
    waiting = entity(gang("g", 2), [first, second])
    assert run_times.declared_end(waiting, 100.0) == 130
    waiting = entity(gang("g", 3), [first, second, annotate(second, "50s")])
    assert run_times.declared_end(waiting, 100.0) == 150


def test_deadline_of_a_started_job_does_not_move_with_the_start_of_its_pods() -> None:
    run_times = RunTimes()
    run_times.observe_job(key("j"), JobRunTime("uid-j", 500, 50.0))
    pods = [ending_pod("a", "g", owner=job_owner("j"))]
    for start, end in ((100.0, 550.0), (540.0, 550.0), (600.0, 600.0)):
        assert run_times.declared_end(entity(gang("g", 1), pods), start) == end
    pods = [ending_pod("a", "g", seconds=20, owner=job_owner("j"))]
    for start, end in ((100.0, 120.0), (540.0, 550.0)):
        assert run_times.declared_end(entity(gang("g", 1), pods), start) == end


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet", "LeaderWorkerSet"])
def test_pods_of_controllers_that_replace_them_never_end(kind: str) -> None:
    run_times, owner = RunTimes(), OwnerReference("apps/v1", kind, "web", uid="u", controller=True)
    one = ending_pod("a", "g", on="n", seconds=10, owner=owner)
    run_times.observe_pod(key("a"), one, 0.0)
    assert end_of(run_times) is None
    waiting = entity(gang("g", 1), [replace(one, spec=replace(one.spec, node_name=""))])
    assert run_times.declared_end(waiting, 0.0) is None
    assert run_times.end_after(waiting, 0.0) is None


def test_pod_that_always_restarts_ends_only_by_a_declared_limit() -> None:
    run_times = RunTimes()
    run_times.observe_pod(key("a"), pod("a", on="n"), 0.0)
    assert end_of(run_times) is None
    run_times.observe_pod(key("a"), annotate(pod("a", on="n"), "30s"), 0.0)
    assert end_of(run_times) == 30


def test_terminating_pod_ends_at_its_deletion_timestamp() -> None:
    run_times = RunTimes()
    run_times.observe_pod(key("a"), pod("a", on="n", deleting=True), 0.0)
    assert end_of(run_times) == pytest.approx(1767225600.0)


def test_pod_that_has_ended_is_forgotten() -> None:
    run_times = RunTimes()
    run_times.observe_pod(key("a"), ending_pod("a", on="n", seconds=5), 0.0)
    assert end_of(run_times) == 5
    run_times.observe_pod(key("a"), None, 1.0)
    assert end_of(run_times) is None
    assert len(run_times.ends) == 0


@pytest.mark.parametrize("change", ["deleted", "unbound", "moved"])
def test_pod_that_changes_while_others_are_evaluated_is_evaluated_as_it_is_then(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.scheduler.reservation.run_times._PODS_PER_STEP", 1)
    run_times = RunTimes()
    for name in ("a", "b"):
        run_times.observe_pod(key(name), ending_pod(name, on="n", seconds=60), 5.0)
    steps = run_times.update()
    next(steps)
    changed = {
        "deleted": None,
        "unbound": ending_pod("b", seconds=60),
        "moved": ending_pod("b", on="m", seconds=60),
    }
    run_times.observe_pod(key("b"), changed[change], 9.0)
    for _ in steps:
        pass
    assert end_of(run_times, "b") == (65 if change == "moved" else None)
    assert len(run_times.ends) == (2 if change == "moved" else 1)


def test_owner_is_named_as_on_the_command_line() -> None:
    run_times = RunTimes()
    run_times.observe_pod(key("a"), ending_pod("a", on="n", owner=job_owner("j")), 0.0)
    run_times.observe_pod(key("b"), ending_pod("b", "g", on="n"), 0.0)
    run_times.observe_pod(key("c"), ending_pod("c", on="n"), 0.0)
    end_of(run_times)
    names = [run_times.owner_of(Key("default", name)) for name in "abcd"]
    assert names == ["job/j", "podgroup/g", "pod/c", "pod/d"]


def test_run_time_of_a_job_is_read_from_its_spec_status_and_annotations() -> None:
    job = Job(
        ObjectMeta(name="j", uid="u", annotations=ANNOTATED),
        JobSpec(active_deadline_seconds=60),
        JobStatus(start_time=timestamp(7)),
    )
    assert job_run_time(job) == JobRunTime("u", 60, 7.0, expected_run_time=1200.0)
    assert job_run_time(Job(ObjectMeta(uid="u"))) == JobRunTime("u")
    assert parse_run_time({}) is None
