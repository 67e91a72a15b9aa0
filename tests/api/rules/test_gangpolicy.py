"""Whether a Job is a gang, in one word."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.api.gatedfields import drop_disabled
from phalanx.api.gates import DEFAULT, Gates, gated
from phalanx.api.kinds import CRON_JOB, JOB
from phalanx.api.rules.table import validate
from phalanx.api.wire import Object
from tests.api.findings import Findings
from tests.api.making import changed, found, made, refused

TEMPLATE: Object = {
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
}
GANG: Object = {"policy": "JobAsGang"}
NO_GANG: Object = {"policy": "NoGang"}
OFF = gated({"JobGangPolicy": False})
BASIC: Object = {"schedulingPolicy": {"basic": {}}}
FULL_GANG: Object = {"schedulingPolicy": {"gang": {}}}


def spec(gang_policy: Object | None, **fields: Any) -> Object:
    said = {} if gang_policy is None else {"gangPolicy": gang_policy}
    return {"template": TEMPLATE, "parallelism": 4, "completions": 4, **said, **fields}


def cron_job(job: Object) -> Object:
    return {"spec": {"schedule": "@daily", "jobTemplate": {"spec": job}}}


def stored(gang_policy: Object | None, gates: Gates) -> Any:
    """What is stored of the policy of a new Job."""
    job = made(JOB, {"spec": spec(gang_policy)})
    drop_disabled(gates, JOB.schema, job, None)
    return job["spec"].get("gangPolicy")


# ----------------------------------------------------------------------------------- defaulting


def test_an_unset_policy_stays_unset_with_the_gate_on() -> None:
    assert stored(None, DEFAULT) is None


def test_an_unset_policy_stays_unset_with_the_gate_off() -> None:
    assert stored(None, OFF) is None


@pytest.mark.parametrize("said", [GANG, NO_GANG], ids=["JobAsGang", "NoGang"])
def test_an_explicit_policy_is_kept_with_the_gate_on(said: Object) -> None:
    assert stored(said, DEFAULT) == said


@pytest.mark.parametrize("said", [GANG, NO_GANG], ids=["JobAsGang", "NoGang"])
def test_an_explicit_policy_is_dropped_with_the_gate_off(said: Object) -> None:
    assert stored(said, OFF) is None


# ----------------------------------------------------------------------------------- validation

WORDS: list[tuple[Object, Findings]] = [
    (NO_GANG, []),
    (GANG, []),
    ({"policy": ""}, ["gangPolicy.policy: Required"]),
    ({}, ["gangPolicy.policy: Required"]),
    ({"policy": "PodsAsGang"}, ["gangPolicy.policy: NotSupported"]),
]


@pytest.mark.parametrize(("said", "causes"), WORDS, ids=lambda case: str(case))
def test_a_policy_is_one_of_two_words(said: Object, causes: Findings) -> None:
    assert refused(JOB, {"spec": spec(said)}) == [f"spec.{cause}" for cause in causes]


@pytest.mark.parametrize(("said", "causes"), WORDS, ids=lambda case: str(case))
def test_the_template_of_a_cron_job_has_one_of_two_words(said: Object, causes: Findings) -> None:
    below = [f"spec.jobTemplate.spec.{cause}" for cause in causes]
    assert refused(CRON_JOB, cron_job(spec(said))) == below


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
def test_a_job_that_says_it_twice_must_not_contradict_itself(
    word: Object, scheduling: Object, count: int
) -> None:
    wanted = spec(word, scheduling=scheduling)
    assert refused(JOB, {"spec": wanted}) == ["spec.gangPolicy.policy: Invalid"] * count
    place = "spec.jobTemplate.spec.gangPolicy.policy"
    assert refused(CRON_JOB, cron_job(wanted)) == [f"{place}: Invalid"] * count


def test_who_is_in_no_group_and_is_disrupted_as_one_is_told_which_two_things_clash() -> None:
    wanted = {"spec": spec(NO_GANG, scheduling={"disruptionMode": {"all": {}}})}
    (cause,) = validate(JOB, made(JOB, wanted), None)
    assert "may not be NoGang when scheduling.disruptionMode.all is set" in cause.message


def test_a_basic_job_is_not_disrupted_as_a_group_whatever_the_word() -> None:
    wanted = spec(NO_GANG, scheduling={**BASIC, "disruptionMode": {"all": {}}})
    assert refused(JOB, {"spec": wanted}) == ["spec.scheduling.disruptionMode: Invalid"]


# --------------------------------------------------------------------------------- immutability


def after(before: Object | None, now: Object | None) -> Findings:
    """What is wrong with a Job whose policy is another one now."""
    old = made(JOB, {"spec": spec(before)})
    kept = {key: value for key, value in old["spec"].items() if key != "gangPolicy"}
    said = {} if now is None else {"gangPolicy": now}
    return found(JOB, changed(JOB, old, spec={**kept, **said}), old)


def test_a_policy_cannot_be_added_to_a_job() -> None:
    assert after(None, GANG) == ["spec.gangPolicy: Invalid"]


def test_a_policy_cannot_be_switched() -> None:
    assert after(NO_GANG, GANG) == ["spec.gangPolicy: Invalid"]


def test_a_policy_cannot_be_removed_from_a_job() -> None:
    assert after(GANG, None) == ["spec.gangPolicy: Invalid"]


def test_a_policy_may_stay_as_it_is() -> None:
    assert after(GANG, copy.deepcopy(GANG)) == []


@pytest.mark.parametrize("now", [None, NO_GANG])
def test_jobs_to_come_may_have_another_policy_than_those_before(now: Object | None) -> None:
    old = made(CRON_JOB, cron_job(spec(GANG)))
    template = {"metadata": {}, "spec": spec(now)}
    new = changed(CRON_JOB, old, spec={**old["spec"], "jobTemplate": template})
    assert found(CRON_JOB, new, old) == []
