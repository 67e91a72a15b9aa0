"""Rules of the status of Jobs: what its counts, times and conditions say about each other."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import JOB
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import find_causes, make_stored

POD: Object = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
INDEXED: Object = {"completionMode": "Indexed", "completions": 4}
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
RUNNING: Object = {"startTime": EARLY, "active": 1}


def job(status: Object, **spec: Any) -> Object:
    template = {"template": {"spec": POD}}
    return {**make_stored(JOB, {"spec": {**template, **spec}}), "status": status}


def true_conditions(*kinds: str) -> list[Object]:
    return [{"type": kind, "status": "True"} for kind in kinds]


def complete(**fields: Any) -> Object:
    met = true_conditions("SuccessCriteriaMet", "Complete")
    return {"startTime": EARLY, "completionTime": LATE, "conditions": met, **fields}


def failed(**fields: Any) -> Object:
    return {"startTime": EARLY, "conditions": true_conditions("FailureTarget", "Failed"), **fields}


@pytest.mark.parametrize(
    ("status", "causes"),
    [
        (RUNNING, []),
        (complete(succeeded=1), []),
        (failed(failed=7), []),
        ({"active": -1}, ["active: Invalid"]),
        ({"succeeded": -1}, ["succeeded: Invalid", "succeeded: Invalid"]),
        ({"failed": -1}, ["failed: Invalid", "failed: Invalid"]),
        ({"ready": -1}, ["ready: Invalid"]),
        ({"terminating": -1}, ["terminating: Invalid"]),
        ({"active": 1, "ready": 2}, ["ready: Invalid"]),
        (
            {"uncountedTerminatedPods": {"succeeded": ["a", "", "a"], "failed": ["a", "b"]}},
            [
                "uncountedTerminatedPods.succeeded[1]: Invalid",
                "uncountedTerminatedPods.succeeded[2]: Duplicate",
                "uncountedTerminatedPods.failed[0]: Duplicate",
            ],
        ),
        (
            {"conditions": true_conditions("Complete")},
            ["completionTime: Required", "conditions: Invalid", "startTime: Required"],
        ),
        (
            {"conditions": true_conditions("Complete", "Failed"), "startTime": EARLY},
            [
                "conditions: Invalid",
                "completionTime: Required",
                "conditions: Invalid",
                "conditions: Invalid",
            ],
        ),
        ({"conditions": true_conditions("Failed"), "startTime": EARLY}, ["conditions: Invalid"]),
        ({"conditions": [{"type": "Failed", "status": "False"}]}, []),
        (
            complete(conditions=true_conditions("SuccessCriteriaMet", "Complete", "FailureTarget")),
            ["conditions: Invalid", "conditions: Invalid"],
        ),
        ({"conditions": true_conditions("SuccessCriteriaMet")}, []),
        ({**RUNNING, "completionTime": LATE}, ["completionTime: Invalid"]),
        (complete(startTime=LATE, completionTime=EARLY), ["completionTime: Invalid"]),
        (complete(active=1), ["active: Invalid"]),
        (complete(terminating=1), ["terminating: Invalid"]),
        (
            complete(uncountedTerminatedPods={"failed": ["a"]}),
            ["uncountedTerminatedPods: Invalid"],
        ),
        (complete(uncountedTerminatedPods={}), []),
    ],
)
def test_status_fields_must_agree(status: Object, causes: CauseSummaries) -> None:
    assert find_causes(JOB, job(status), job({}), "status") == prefix_summaries("status", causes)


@pytest.mark.parametrize(
    ("spec", "status", "causes"),
    [
        (INDEXED, {"completedIndexes": "0,2-3"}, []),
        (INDEXED, {"completedIndexes": "4"}, ["completedIndexes: Invalid"]),
        ({}, {"completedIndexes": "0"}, ["completedIndexes: Invalid"]),
        (INDEXED, {"failedIndexes": "0"}, ["failedIndexes: Invalid"]),
        ({**INDEXED, "backoffLimitPerIndex": 1}, {"failedIndexes": "0"}, []),
        (
            {**INDEXED, "backoffLimitPerIndex": 1},
            {"failedIndexes": "1-a"},
            ["failedIndexes: Invalid"],
        ),
        (
            {**INDEXED, "backoffLimitPerIndex": 1},
            {"completedIndexes": "0,2-3", "failedIndexes": "1,3"},
            ["failedIndexes: Invalid"],
        ),
    ],
)
def test_indexes_have_completed_or_failed(
    spec: Object, status: Object, causes: CauseSummaries
) -> None:
    assert find_causes(JOB, job(status, **spec), job({}, **spec), "status") == prefix_summaries(
        "status", causes
    )


@pytest.mark.parametrize(
    ("before", "after", "spec", "causes"),
    [
        ({"failed": 2}, {"failed": 1}, {}, ["failed: Invalid"]),
        ({"succeeded": 2}, {"succeeded": 1}, {}, ["succeeded: Invalid"]),
        ({"succeeded": 2}, {"succeeded": 1}, {**INDEXED, "parallelism": 4}, []),
        (
            {"succeeded": 2},
            {"succeeded": 1},
            {**INDEXED, "parallelism": 2},
            ["succeeded: Invalid"],
        ),
        (failed(), {"startTime": EARLY}, {}, ["conditions: Invalid", "conditions: Invalid"]),
        (
            complete(),
            {"startTime": EARLY, "conditions": true_conditions("Complete"), "completionTime": LATE},
            {},
            ["conditions: Invalid", "conditions: Invalid"],
        ),
        (complete(), complete(completionTime="2026-01-02T00:00:00Z"), {}, [
            "completionTime: Invalid"
        ]),
        (RUNNING, {"active": 1}, {}, ["startTime: Required"]),
        (RUNNING, {"startTime": LATE, "active": 1}, {}, ["startTime: Required"]),
        (RUNNING, {}, {"suspend": True}, []),
        (
            {**complete(), "conditions": true_conditions("Complete")},
            complete(),
            {},
            ["conditions: Invalid"],
        ),
    ],
)  # fmt: skip
def test_what_has_happened_stays_so(
    before: Object, after: Object, spec: Object, causes: CauseSummaries
) -> None:
    new, old = (job(status, **spec) for status in (after, before))
    assert find_causes(JOB, new, old, "status") == prefix_summaries("status", causes)


def test_unchanged_inconsistent_fields_are_not_reported() -> None:
    odd = {"active": 1, "ready": 3, "completedIndexes": "9"}
    assert find_causes(JOB, job({**odd, "failed": 1}), job(odd), "status") == []


def test_a_cause_about_several_conditions_shows_no_value() -> None:
    (cause, *_) = validate(
        JOB,
        job({"startTime": EARLY, "conditions": true_conditions("Failed")}),
        job({}),
        subresource="status",
    )
    assert str(cause) == (
        "status.conditions: Invalid value: "
        "cannot set Failed=True condition without the FailureTarget=true condition"
    )
