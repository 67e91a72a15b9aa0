"""The history of a CronJob: the status that follows from its Jobs."""

from __future__ import annotations

from phalanx.api.batch import CronJob, CronJobStatus, Job, JobCondition, JobReference, JobStatus
from phalanx.api.meta import ObjectMeta
from phalanx.api.wire import Object
from phalanx.controllers.cron_jobs.history import SCHEDULED_AT, CronJobHistory

CREATED, FIRST, SECOND = "2027-01-15T08:00:00Z", "2027-01-15T08:01:00Z", "2027-01-15T08:02:00Z"
#: The minute of FIRST, as in the names of Jobs.
MINUTE = 30_000_001


def cron_job(*active: JobReference, last: str | None = None) -> CronJob:
    meta = ObjectMeta(name="tick", namespace="default", uid="c", creation_timestamp=CREATED)
    return CronJob(meta, status=CronJobStatus(active, last))


def job(
    name: str,
    uid: str,
    at: str = "",
    *,
    end: str = "",
    completed: str | None = None,
    deleted: str = "",
) -> Job:
    annotations = {SCHEDULED_AT: at} if at else {}
    meta = ObjectMeta(
        name=name,
        namespace="default",
        uid=uid,
        annotations=annotations,
        resource_version="7",
        deletion_timestamp=deleted,
    )
    conditions = (JobCondition(end, "True"),) if end else ()
    return Job(meta, status=JobStatus(conditions, completion_time=completed))


def reference(uid: str, version: str = "5") -> JobReference:
    return JobReference(name=f"job-{uid}", uid=uid, resource_version=version)


def changed_status(history: CronJobHistory) -> Object:
    (patch,) = history.status_patches()
    assert isinstance(patch.change, dict)
    status: Object = patch.change["status"]
    return status


def test_starts_are_missed_since_the_last_start_or_the_creation() -> None:
    assert CronJobHistory(cron_job(), [], 0).missed_since == 1_800_000_000.0
    assert CronJobHistory(cron_job(last=SECOND), [], 0).missed_since == 1_800_000_120.0
    assert CronJobHistory(cron_job(last="0001-01-01T00:00:00Z"), [], 0).missed_since == 0.0


def test_created_job_that_the_status_lacks_is_found() -> None:
    history = CronJobHistory(cron_job(), [job(f"tick-{MINUTE}", "a", FIRST)], 9)
    assert changed_status(history) == {
        "active": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "namespace": "default",
                "name": f"tick-{MINUTE}",
                "uid": "a",
                "resourceVersion": "7",
            }
        ],
        "lastScheduleTime": FIRST,
    }


def test_job_that_finished_before_it_was_recorded_counts_as_start() -> None:
    history = CronJobHistory(cron_job(), [job(f"tick-{MINUTE}", "a", FIRST, end="Failed")], 9)
    assert changed_status(history) == {"lastScheduleTime": FIRST}


def test_job_is_recognized_only_by_both_name_and_annotation() -> None:
    foreign = [
        job(f"tick-{MINUTE}", "a"),
        job("manual", "b", FIRST),
        job("tick-1", "c", "rubbish"),
    ]
    history = CronJobHistory(cron_job(), foreign, 9)
    assert history.status_patches() == []
    assert [event.reason for event in history.unexpected_job_events()] == ["UnexpectedJob"] * 3


def test_last_schedule_time_never_goes_back() -> None:
    history = CronJobHistory(
        cron_job(last=SECOND), [job(f"tick-{MINUTE}", "a", FIRST, end="Complete")], 9
    )
    assert history.status_patches() == []


def test_job_is_missing_only_if_the_cache_is_as_new_as_its_reference() -> None:
    recorded = cron_job(reference("a", "5"))
    assert CronJobHistory(recorded, [], 4).status_patches() == []
    history = CronJobHistory(recorded, [], 5)
    assert changed_status(history) == {"active": None}
    assert [event.message for event in history.events] == ["Active job went missing: job-a"]


def test_reference_without_a_version_counts_as_oldest() -> None:
    for version in ("", "rubbish"):
        assert changed_status(CronJobHistory(cron_job(reference("a", version)), [], 0)) == {
            "active": None
        }


def test_terminating_job_stays_active_and_is_not_added() -> None:
    terminating = job(f"tick-{MINUTE}", "a", FIRST, deleted=SECOND)
    assert CronJobHistory(cron_job(last=FIRST), [terminating], 9).status_patches() == []
    assert (
        CronJobHistory(cron_job(reference("a"), last=FIRST), [terminating], 9).status_patches()
        == []
    )


def test_latest_success_is_recorded() -> None:
    finished = [
        job("x", "a", end="Complete", completed=SECOND),
        job("y", "b", end="Complete", completed=FIRST),
        job("z", "c", end="Failed", completed="2028-01-01T00:00:00Z"),
    ]
    assert changed_status(CronJobHistory(cron_job(), finished, 9)) == {"lastSuccessfulTime": SECOND}


def test_deleted_job_is_removed_from_active() -> None:
    running = job("job-a", "a")
    history = CronJobHistory(cron_job(reference("a")), [running], 9)
    assert history.running_jobs == [running]
    history.remove_active(running)
    assert changed_status(history) == {"active": None}
