"""The books of a CronJob: what its status should say, given its Jobs."""

from __future__ import annotations

from phalanx.api.batch import Job, JobCondition, JobStatus
from phalanx.api.meta import ObjectMeta
from phalanx.api.wire import Object
from phalanx.controllers.cronjobs.history import (
    SCHEDULED_AT,
    CronJob,
    CronJobHistory,
    CronJobStatus,
    JobReference,
)

BORN, FIRST, SECOND = "2027-01-15T08:00:00Z", "2027-01-15T08:01:00Z", "2027-01-15T08:02:00Z"
#: The minute of FIRST, as Jobs are called after it.
MINUTE = 30_000_001


def cron_job(*active: JobReference, last: str | None = None) -> CronJob:
    meta = ObjectMeta(name="tick", namespace="default", uid="c", creation_timestamp=BORN)
    return CronJob(meta, status=CronJobStatus(active, last))


def job(
    name: str, uid: str, at: str = "", *, end: str = "", done: str | None = None, goes: str = ""
) -> Job:
    marks = {SCHEDULED_AT: at} if at else {}
    meta = ObjectMeta(
        name=name, namespace="default", uid=uid, annotations=marks, resource_version="7",
        deletion_timestamp=goes,
    )  # fmt: skip
    said = (JobCondition(end, "True"),) if end else ()
    return Job(meta, status=JobStatus(said, completion_time=done))


def reference(uid: str, version: str = "5") -> JobReference:
    return JobReference(name=f"job-{uid}", uid=uid, resource_version=version)


def changed(books: CronJobHistory) -> Object:
    (patch,) = books.status_patches()
    assert isinstance(patch.change, dict)
    status: Object = patch.change["status"]
    return status


def test_the_clock_begins_at_birth_and_goes_on_from_the_last_start() -> None:
    assert CronJobHistory(cron_job(), [], 0).missed_since == 1_800_000_000.0
    assert CronJobHistory(cron_job(last=SECOND), [], 0).missed_since == 1_800_000_120.0
    assert CronJobHistory(cron_job(last="0001-01-01T00:00:00Z"), [], 0).missed_since == 0.0


def test_a_job_that_was_made_and_not_noted_is_found_again() -> None:
    books = CronJobHistory(cron_job(), [job(f"tick-{MINUTE}", "a", FIRST)], 9)
    assert changed(books) == {
        "active": [{
            "apiVersion": "batch/v1", "kind": "Job", "namespace": "default",
            "name": f"tick-{MINUTE}", "uid": "a", "resourceVersion": "7",
        }],
        "lastScheduleTime": FIRST,
    }  # fmt: skip


def test_a_job_that_ended_before_it_was_noted_counts_as_a_start() -> None:
    books = CronJobHistory(cron_job(), [job(f"tick-{MINUTE}", "a", FIRST, end="Failed")], 9)
    assert changed(books) == {"lastScheduleTime": FIRST}


def test_a_job_is_ours_only_by_both_its_name_and_its_mark() -> None:
    strangers = [
        job(f"tick-{MINUTE}", "a"), job("by-hand", "b", FIRST), job("tick-1", "c", "rubbish"),
    ]  # fmt: skip
    books = CronJobHistory(cron_job(), strangers, 9)
    assert books.status_patches() == []
    assert [remark.reason for remark in books.unexpected_job_events()] == ["UnexpectedJob"] * 3


def test_a_start_that_is_noted_is_never_taken_back() -> None:
    books = CronJobHistory(
        cron_job(last=SECOND), [job(f"tick-{MINUTE}", "a", FIRST, end="Complete")], 9
    )
    assert books.status_patches() == []


def test_a_job_is_missed_only_by_whoever_has_seen_far_enough() -> None:
    noted = cron_job(reference("a", "5"))
    assert CronJobHistory(noted, [], 4).status_patches() == []
    books = CronJobHistory(noted, [], 5)
    assert changed(books) == {"active": None}
    assert [remark.message for remark in books.events] == ["Active job went missing: job-a"]


def test_a_note_without_a_version_is_as_old_as_can_be() -> None:
    for version in ("", "rubbish"):
        assert changed(CronJobHistory(cron_job(reference("a", version)), [], 0)) == {"active": None}


def test_a_job_that_goes_is_kept_in_mind_if_it_was_and_not_noted_anew() -> None:
    going = job(f"tick-{MINUTE}", "a", FIRST, goes=SECOND)
    assert CronJobHistory(cron_job(last=FIRST), [going], 9).status_patches() == []
    assert CronJobHistory(cron_job(reference("a"), last=FIRST), [going], 9).status_patches() == []


def test_the_latest_success_counts() -> None:
    ended = [
        job("x", "a", end="Complete", done=SECOND), job("y", "b", end="Complete", done=FIRST),
        job("z", "c", end="Failed", done="2028-01-01T00:00:00Z"),
    ]  # fmt: skip
    assert changed(CronJobHistory(cron_job(), ended, 9)) == {"lastSuccessfulTime": SECOND}


def test_what_is_to_go_is_struck() -> None:
    running = job("job-a", "a")
    books = CronJobHistory(cron_job(reference("a")), [running], 9)
    assert books.running_jobs == [running]
    books.remove_active(running)
    assert changed(books) == {"active": None}
