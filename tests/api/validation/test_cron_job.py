"""Rules of CronJobs."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import CRON_JOB
from phalanx.api.validation import job as cronrules
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

POD: Object = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
JOBS: Object = {"spec": {"template": {"spec": POD}}}


def spec(**fields: Any) -> Object:
    return {"schedule": "*/5 * * * *", "jobTemplate": JOBS, **fields}


def jobs(**fields: Any) -> Object:
    return {"jobTemplate": {"spec": {**JOBS["spec"], **fields}}}


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({}, []),
        ({"schedule": "@daily", "timeZone": "Etc/UTC", "startingDeadlineSeconds": 0}, []),
        ({"schedule": ""}, ["schedule: Required"]),
        ({"schedule": "often"}, ["schedule: Invalid"]),
        ({"schedule": "TZ=UTC 0 * * * *"}, ["schedule: Invalid"]),
        ({"schedule": "CRON_TZ=UTC often"}, ["schedule: Invalid", "schedule: Invalid"]),
        ({"timeZone": "Local"}, ["timeZone: Invalid"]),
        ({"timeZone": "Mars/Olympus"}, ["timeZone: Invalid"]),
        ({"timeZone": "../etc/passwd"}, ["timeZone: Invalid"]),
        ({"timeZone": "Europe//Berlin"}, ["timeZone: Invalid"]),
        ({"timeZone": "-Europe"}, ["timeZone: Invalid"]),
        ({"startingDeadlineSeconds": -5}, ["startingDeadlineSeconds: Invalid"]),
        ({"concurrencyPolicy": "Maybe"}, ["concurrencyPolicy: NotSupported"]),
        ({"successfulJobsHistoryLimit": -1}, ["successfulJobsHistoryLimit: Invalid"]),
        ({"failedJobsHistoryLimit": -1}, ["failedJobsHistoryLimit: Invalid"]),
        (jobs(parallelism=-1), ["jobTemplate.spec.parallelism: Invalid"]),
        (jobs(selector={"matchLabels": {"a": "b"}}), ["jobTemplate.spec.selector: Invalid"]),
        (jobs(manualSelector=True), ["jobTemplate.spec.manualSelector: NotSupported"]),
        (
            jobs(template={"spec": {"containers": POD["containers"]}}),
            ["jobTemplate.spec.template.spec.restartPolicy: Required"],
        ),
    ],
)
def test_cron_job_is_validated(fields: Object, causes: CauseSummaries) -> None:
    assert creation_causes(CRON_JOB, {"spec": spec(**fields)}) == prefix_summaries("spec", causes)


def test_a_time_zone_has_a_name() -> None:
    new = make_stored(CRON_JOB, {"spec": spec()})
    new["spec"]["timeZone"] = ""
    assert find_causes(CRON_JOB, new) == ["spec.timeZone: Invalid"]


def test_system_without_time_zones_accepts_well_formed_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cronrules, "_known_time_zones", lambda: frozenset[str]())
    assert creation_causes(CRON_JOB, {"spec": spec(timeZone="Europe/Berlin")}) == []
    assert creation_causes(CRON_JOB, {"spec": spec(timeZone="Europe/..")}) == [
        "spec.timeZone: Invalid"
    ]


def test_a_name_leaves_room_for_the_minute_of_a_job() -> None:
    assert creation_causes(CRON_JOB, {"metadata": {"name": "n" * 52}, "spec": spec()}) == []
    long: Object = {"metadata": {"name": "n" * 53}, "spec": spec()}
    assert creation_causes(CRON_JOB, long) == ["metadata.name: Invalid"]
    old = make_stored(CRON_JOB, long)
    assert find_causes(CRON_JOB, change_stored(CRON_JOB, old, spec=spec(suspend=True)), old) == []


def test_a_zone_within_the_schedule_is_kept_where_it_was() -> None:
    old = make_stored(CRON_JOB, {"spec": spec(schedule="TZ=UTC 0 * * * *")})
    later = change_stored(CRON_JOB, old, spec=spec(schedule="TZ=UTC 5 * * * *"))
    assert find_causes(CRON_JOB, later, old) == []
    both = change_stored(CRON_JOB, old, spec=spec(schedule="TZ=UTC 5 * * * *", timeZone="Etc/UTC"))
    assert find_causes(CRON_JOB, both, old) == ["spec.schedule: Invalid"]


def test_unchanged_time_zone_is_not_validated_again() -> None:
    old = make_stored(CRON_JOB, {"spec": spec(timeZone="Mars/Olympus")})
    assert (
        find_causes(
            CRON_JOB, change_stored(CRON_JOB, old, spec={**old["spec"], "suspend": True}), old
        )
        == []
    )
