"""Rules of `spec.gangPolicy`: whether a Job is a gang."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.api.feature_gates import DEFAULT_GATES, FeatureGates, drop_disabled, resolve_gates
from phalanx.api.kinds import CRON_JOB, JOB
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

TEMPLATE: Object = {
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
}
GANG: Object = {"policy": "JobAsGang"}
NO_GANG: Object = {"policy": "NoGang"}
OFF = resolve_gates({"JobGangPolicy": False})
BASIC: Object = {"schedulingPolicy": {"basic": {}}}
FULL_GANG: Object = {"schedulingPolicy": {"gang": {}}}


def spec(gang_policy: Object | None, **fields: Any) -> Object:
    said = {} if gang_policy is None else {"gangPolicy": gang_policy}
    return {"template": TEMPLATE, "parallelism": 4, "completions": 4, **said, **fields}


def cron_job(job: Object) -> Object:
    return {"spec": {"schedule": "@daily", "jobTemplate": {"spec": job}}}


def stored_gang_policy(gang_policy: Object | None, gates: FeatureGates) -> Any:
    """What is stored of the policy of a new Job."""
    job = make_stored(JOB, {"spec": spec(gang_policy)})
    drop_disabled(gates, JOB.schema, job, old=None)
    return job["spec"].get("gangPolicy")


# ----------------------------------------------------------------------------------- defaulting


def test_an_unset_policy_stays_unset_with_the_gate_on() -> None:
    assert stored_gang_policy(None, DEFAULT_GATES) is None


def test_an_unset_policy_stays_unset_with_the_gate_off() -> None:
    assert stored_gang_policy(None, OFF) is None


@pytest.mark.parametrize("said", [GANG, NO_GANG], ids=["JobAsGang", "NoGang"])
def test_an_explicit_policy_is_kept_with_the_gate_on(said: Object) -> None:
    assert stored_gang_policy(said, DEFAULT_GATES) == said


@pytest.mark.parametrize("said", [GANG, NO_GANG], ids=["JobAsGang", "NoGang"])
def test_an_explicit_policy_is_dropped_with_the_gate_off(said: Object) -> None:
    assert stored_gang_policy(said, OFF) is None


# ----------------------------------------------------------------------------------- validation

WORDS: list[tuple[Object, CauseSummaries]] = [
    (NO_GANG, []),
    (GANG, []),
    ({"policy": ""}, ["gangPolicy.policy: Required"]),
    ({}, ["gangPolicy.policy: Required"]),
    ({"policy": "PodsAsGang"}, ["gangPolicy.policy: NotSupported"]),
]


@pytest.mark.parametrize(("said", "causes"), WORDS, ids=lambda case: str(case))
def test_gang_policy_has_two_values(said: Object, causes: CauseSummaries) -> None:
    assert creation_causes(JOB, {"spec": spec(said)}) == [f"spec.{cause}" for cause in causes]


@pytest.mark.parametrize(("said", "causes"), WORDS, ids=lambda case: str(case))
def test_cron_job_template_gang_policy_has_two_values(said: Object, causes: CauseSummaries) -> None:
    below = [f"spec.jobTemplate.spec.{cause}" for cause in causes]
    assert creation_causes(CRON_JOB, cron_job(spec(said))) == below


TOGETHER: list[tuple[Object, Object, int]] = [
    (GANG, FULL_GANG, 0),
    (GANG, {"schedulingPolicy": {"gang": {"minCount": 2}}}, 0),
    (GANG, {"schedulingConstraints": {"topology": [{"key": "zone"}]}}, 0),
    (GANG, {"disruptionMode": {"all": {}}}, 0),
    (GANG, BASIC, 1),
    (NO_GANG, BASIC, 0),
    (NO_GANG, {}, 0),
    (NO_GANG, {"disruptionMode": {"single": {}}}, 0),
    (NO_GANG, FULL_GANG, 1),
    (NO_GANG, {"schedulingConstraints": {"topology": [{"key": "zone"}]}}, 1),
    (NO_GANG, {"resourceClaims": [{"name": "c", "resourceClaimName": "x"}]}, 1),
    (NO_GANG, {"disruptionMode": {"all": {}}}, 1),
]


@pytest.mark.parametrize(("word", "scheduling", "count"), TOGETHER)
def test_gang_policy_and_scheduling_must_agree(
    word: Object, scheduling: Object, count: int
) -> None:
    wanted = spec(word, scheduling=scheduling)
    assert creation_causes(JOB, {"spec": wanted}) == ["spec.gangPolicy.policy: Invalid"] * count
    place = "spec.jobTemplate.spec.gangPolicy.policy"
    assert creation_causes(CRON_JOB, cron_job(wanted)) == [f"{place}: Invalid"] * count


def test_disruption_mode_all_with_no_gang_names_both_fields() -> None:
    wanted = {"spec": spec(NO_GANG, scheduling={"disruptionMode": {"all": {}}})}
    (cause,) = validate(JOB, make_stored(JOB, wanted), None)
    assert "may not be NoGang when scheduling.disruptionMode.all is set" in cause.message


def test_basic_job_may_not_be_disrupted_as_a_group() -> None:
    wanted = spec(NO_GANG, scheduling={**BASIC, "disruptionMode": {"all": {}}})
    assert creation_causes(JOB, {"spec": wanted}) == ["spec.scheduling.disruptionMode: Invalid"]


# --------------------------------------------------------------------------------- immutability


def update_causes(before: Object | None, now: Object | None) -> CauseSummaries:
    """What is wrong with a Job whose policy is another one now."""
    old = make_stored(JOB, {"spec": spec(before)})
    kept = {key: value for key, value in old["spec"].items() if key != "gangPolicy"}
    said = {} if now is None else {"gangPolicy": now}
    return find_causes(JOB, change_stored(JOB, old, spec={**kept, **said}), old)


def test_a_policy_cannot_be_added_to_a_job() -> None:
    assert update_causes(None, GANG) == ["spec.gangPolicy: Invalid"]


def test_a_policy_cannot_be_switched() -> None:
    assert update_causes(NO_GANG, GANG) == ["spec.gangPolicy: Invalid"]


def test_a_policy_cannot_be_removed_from_a_job() -> None:
    assert update_causes(GANG, None) == ["spec.gangPolicy: Invalid"]


def test_a_policy_may_stay_as_it_is() -> None:
    assert update_causes(GANG, copy.deepcopy(GANG)) == []


@pytest.mark.parametrize("now", [None, NO_GANG])
def test_jobs_to_come_may_have_another_policy_than_those_before(now: Object | None) -> None:
    old = make_stored(CRON_JOB, cron_job(spec(GANG)))
    template = {"metadata": {}, "spec": spec(now)}
    new = change_stored(CRON_JOB, old, spec={**old["spec"], "jobTemplate": template})
    assert find_causes(CRON_JOB, new, old) == []
