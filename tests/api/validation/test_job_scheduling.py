"""Rules of how the pods of a Job are scheduled together."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import CRON_JOB, JOB
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

TEMPLATE: Object = {
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
}
GANG: Object = {"schedulingPolicy": {"gang": {"minCount": 3}}}
BASIC: Object = {"schedulingPolicy": {"basic": {}}}
FULL: Object = {
    **GANG,
    "schedulingConstraints": {"topology": [{"key": "zone"}]},
    "disruptionMode": {"all": {}},
    "resourceClaims": [{"name": "c", "resourceClaimName": "x"}],
}


def spec(scheduling: Object | None, **fields: Any) -> Object:
    said = {} if scheduling is None else {"scheduling": scheduling}
    return {"template": TEMPLATE, "parallelism": 4, "completions": 4, **said, **fields}


def claims(*names: str) -> list[Object]:
    return [{"name": name, "resourceClaimName": "x"} for name in names]


CASES: list[tuple[Object, CauseSummaries]] = [
    ({}, []),
    (FULL, []),
    ({"schedulingPolicy": {"gang": {}}}, []),
    (BASIC, []),
    ({**BASIC, "disruptionMode": {"single": {}}}, []),
    ({"schedulingConstraints": {"topology": [{"key": "zone"}]}}, []),
    ({"schedulingPolicy": {"gang": {"minCount": 4}}}, []),
    ({"schedulingPolicy": {"gang": {"minCount": 5}}}, ["schedulingPolicy.gang.minCount: Invalid"]),
    ({"schedulingPolicy": {"gang": {"minCount": 0}}}, ["schedulingPolicy.gang.minCount: Invalid"]),
    ({"schedulingPolicy": {}}, ["schedulingPolicy: Invalid"]),
    ({"schedulingPolicy": {"basic": {}, "gang": {}}}, ["schedulingPolicy: Invalid"]),
    ({**BASIC, "disruptionMode": {"all": {}}}, ["disruptionMode: Invalid"]),
    ({"disruptionMode": {"all": {}}}, ["disruptionMode: Invalid"]),
    ({**GANG, "disruptionMode": {"all": {}, "single": {}}}, ["disruptionMode: Invalid"]),
    ({**GANG, "disruptionMode": {}}, ["disruptionMode: Invalid"]),
    (
        {"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
        ["schedulingConstraints.topology: TooMany"],
    ),
    (
        {"schedulingConstraints": {"topology": [{"key": "a b"}]}},
        ["schedulingConstraints.topology[0].key: Invalid"],
    ),
    ({"resourceClaims": claims("a", "b", "c", "d", "e")}, ["resourceClaims: TooMany"]),
    ({"resourceClaims": claims("a", "a")}, ["resourceClaims[1]: Duplicate"]),
    ({"resourceClaims": [{"name": "a"}]}, ["resourceClaims[0]: Invalid"]),
    ({"resourceClaims": claims("")}, ["resourceClaims[0].name: Required"]),
]


@pytest.mark.parametrize(("scheduling", "causes"), CASES)
def test_job_scheduling_is_validated(scheduling: Object, causes: CauseSummaries) -> None:
    assert creation_causes(JOB, {"spec": spec(scheduling)}) == prefix_summaries(
        "spec.scheduling", causes
    )


@pytest.mark.parametrize(("scheduling", "causes"), CASES)
def test_cron_job_template_scheduling_is_validated(
    scheduling: Object, causes: CauseSummaries
) -> None:
    wanted = {"schedule": "@daily", "jobTemplate": {"spec": spec(scheduling)}}
    place = "spec.jobTemplate.spec.scheduling"
    assert creation_causes(CRON_JOB, {"spec": wanted}) == prefix_summaries(place, causes)


def test_a_gang_is_not_larger_than_the_one_pod_of_a_small_job() -> None:
    alone = {"template": TEMPLATE, "scheduling": GANG}
    wanted = {"schedule": "@daily", "jobTemplate": {"spec": alone}}
    place = "scheduling.schedulingPolicy.gang.minCount"
    assert creation_causes(JOB, {"spec": alone}) == [f"spec.{place}: Invalid"]
    assert creation_causes(CRON_JOB, {"spec": wanted}) == [
        f"spec.jobTemplate.spec.{place}: Invalid"
    ]
    assert creation_causes(JOB, {"spec": spec(GANG, parallelism=0)}) == [f"spec.{place}: Invalid"]


CHANGES: list[tuple[Object | None, Object | None, CauseSummaries]] = [
    (FULL, {**FULL, "schedulingPolicy": {"gang": {"minCount": 4}}}, []),
    (FULL, {**FULL, "schedulingPolicy": {"gang": {}}}, []),
    (
        FULL,
        {**FULL, "schedulingPolicy": {"gang": {"minCount": 5}}},
        ["schedulingPolicy.gang.minCount: Invalid"],
    ),
    (None, BASIC, [": Invalid"]),
    (BASIC, None, [": Invalid"]),
    ({}, BASIC, ["schedulingPolicy: Invalid"]),
    (GANG, {}, ["schedulingPolicy: Invalid"]),
    (
        FULL,
        {**FULL, "schedulingConstraints": {"topology": [{"key": "rack"}]}},
        ["schedulingConstraints: Invalid"],
    ),
    (FULL, {**FULL, "disruptionMode": {"single": {}}}, ["disruptionMode: Invalid"]),
    (FULL, {**FULL, "resourceClaims": []}, ["resourceClaims: Invalid"]),
]


@pytest.mark.parametrize(("before", "after", "causes"), CHANGES)
def test_only_the_size_of_a_gang_may_change(
    before: Object | None, after: Object | None, causes: CauseSummaries
) -> None:
    old = make_stored(JOB, {"spec": spec(before)})
    kept = {key: value for key, value in old["spec"].items() if key != "scheduling"}
    said = {} if after is None else {"scheduling": after}
    new = change_stored(JOB, old, spec={**kept, **said})
    assert find_causes(JOB, new, old) == prefix_summaries("spec.scheduling", causes)


def test_a_gang_never_becomes_basic() -> None:
    old = make_stored(JOB, {"spec": spec(FULL)})
    new = change_stored(JOB, old, spec={**old["spec"], "scheduling": {**FULL, **BASIC}})
    assert find_causes(JOB, new, old) == prefix_summaries(
        "spec.scheduling", ["disruptionMode: Invalid", "schedulingPolicy: Invalid"]
    )


def test_the_jobs_of_a_cron_job_may_become_basic() -> None:
    old = make_stored(
        CRON_JOB, {"spec": {"schedule": "@daily", "jobTemplate": {"spec": spec(GANG)}}}
    )
    template = {"metadata": {}, "spec": spec(BASIC)}
    new = change_stored(CRON_JOB, old, spec={**old["spec"], "jobTemplate": template})
    assert find_causes(CRON_JOB, new, old) == []
    without = {"metadata": {}, "spec": spec(None)}
    gone = change_stored(CRON_JOB, old, spec={**old["spec"], "jobTemplate": without})
    assert find_causes(CRON_JOB, gone, old) == ["spec.jobTemplate.spec.scheduling: Invalid"]
