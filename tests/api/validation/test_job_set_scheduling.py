"""Rules of `spec.scheduling` in JobSets: the JobSet, its replicated Jobs, and their templates."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.api.kinds import JOB_SET
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored
from tests.api.validation.test_job_set import PODS, dependent_job, job

BASIC: Object = {"basic": {}}
RACK: Object = {"topology": [{"key": "example.com/rack"}]}


def gang(count: int | None = None, field: str = "minCount") -> Object:
    return {"gang": {} if count is None else {field: count}}


def group_gang(count: int | None = None) -> Object:
    return gang(count, "minGroupCount")


def replicated_job_policy(name: str = "workers", **fields: Any) -> Object:
    return {"targetReplicatedJob": name, **fields}


def workers(replicas: int = 2, pods: Object = PODS, **spec: Any) -> Object:
    return job("workers", replicas, pods, parallelism=4, completions=4, **spec)


def spec(nested: Object | None = None, jobs: list[Object] | None = None, **fields: Any) -> Object:
    """A JobSet of a driver and of workers that say how they are scheduled, or do not."""
    more: Object = {} if nested is None else {"scheduling": nested}
    return {"replicatedJobs": jobs or [job("driver"), workers(**more)], "scheduling": fields}


def create_causes(
    nested: Object | None = None, jobs: list[Object] | None = None, **fields: Any
) -> CauseSummaries:
    return creation_causes(JOB_SET, {"spec": spec(nested, jobs, **fields)})


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({}, []),
        ({"schedulingPolicy": BASIC}, []),
        ({"schedulingPolicy": group_gang(), "disruptionMode": {"all": {}}}, []),
        ({"schedulingPolicy": group_gang(2), "schedulingConstraints": RACK}, []),
        ({"disruptionMode": {"all": {}}}, []),
        ({"schedulingPolicy": group_gang(0)}, ["schedulingPolicy.gang.minGroupCount: Invalid"]),
        ({"schedulingPolicy": group_gang(3)}, ["schedulingPolicy.gang.minGroupCount: Invalid"]),
        ({"schedulingPolicy": {}}, ["schedulingPolicy: Invalid"]),
        ({"schedulingPolicy": {**BASIC, **group_gang()}}, ["schedulingPolicy: Invalid"]),
        ({"disruptionMode": {}}, ["disruptionMode: Invalid"]),
        (
            {"schedulingPolicy": BASIC, "disruptionMode": {"all": {}}},
            ["disruptionMode: Invalid"],
        ),
        (
            {"schedulingConstraints": {"topology": [*RACK["topology"], *RACK["topology"]]}},
            ["schedulingConstraints.topology: TooMany"],
        ),
    ],
)
def test_a_job_set_is_a_gang_of_gangs_or_goes_its_ways_singly(
    fields: Object, causes: CauseSummaries
) -> None:
    assert create_causes(**fields) == prefix_summaries("spec.scheduling", causes)


@pytest.mark.parametrize(
    ("policies", "causes"),
    [
        ([replicated_job_policy()], []),
        (
            [
                replicated_job_policy(schedulingPolicy=gang(8)),
                replicated_job_policy("driver", schedulingPolicy=BASIC),
            ],
            [],
        ),
        ([replicated_job_policy(schedulingConstraints=RACK)], []),
        ([replicated_job_policy(schedulingPolicy=gang(), disruptionMode={"all": {}})], []),
        ([replicated_job_policy(resourceClaims=[{"name": "c", "resourceClaimName": "claim"}])], []),
        ([replicated_job_policy("unknown")], ["[0].targetReplicatedJob: Invalid"]),
        ([replicated_job_policy("")], ["[0].targetReplicatedJob: Required"]),
        (
            [replicated_job_policy(), replicated_job_policy("driver"), replicated_job_policy()],
            ["[2]: Duplicate"],
        ),
        ([replicated_job_policy(schedulingPolicy={})], ["[0].schedulingPolicy: Invalid"]),
        (
            [replicated_job_policy(schedulingPolicy=gang(9))],
            ["[0].schedulingPolicy.gang.minCount: Invalid"],
        ),
        (
            [replicated_job_policy(schedulingPolicy=BASIC, disruptionMode={"all": {}})],
            ["[0].disruptionMode: Invalid"],
        ),
        (
            [replicated_job_policy(schedulingConstraints={"topology": [{"key": "no key"}]})],
            ["[0].schedulingConstraints.topology[0].key: Invalid"],
        ),
    ],
)
def test_replicated_job_policies_are_validated_by_name(
    policies: list[Object], causes: CauseSummaries
) -> None:
    assert create_causes(replicatedJobPolicies=policies) == prefix_summaries(
        "spec.scheduling.replicatedJobPolicies", causes
    )


NESTED = "spec.replicatedJobs[1].template.spec.scheduling"


@pytest.mark.parametrize(
    ("nested", "causes"),
    [
        ({"schedulingPolicy": gang(4)}, []),
        ({"schedulingConstraints": RACK}, []),
        ({"schedulingPolicy": gang(5)}, [".schedulingPolicy.gang.minCount: Invalid"]),
        ({"disruptionMode": {"all": {}}}, [".disruptionMode: Invalid"]),
    ],
)
def test_scheduling_in_a_job_template_is_validated(nested: Object, causes: CauseSummaries) -> None:
    assert create_causes(nested, schedulingPolicy=BASIC) == [f"{NESTED}{cause}" for cause in causes]


@pytest.mark.parametrize(
    ("nested", "by_name", "agreed"),
    [
        ({"schedulingPolicy": gang()}, {"schedulingPolicy": gang()}, True),
        ({"schedulingPolicy": gang(2)}, {"schedulingPolicy": gang(2)}, True),
        ({"schedulingConstraints": RACK}, {"schedulingConstraints": RACK}, True),
        ({}, {}, True),
        ({"schedulingPolicy": gang(2)}, {"schedulingPolicy": gang(3)}, False),
        ({"schedulingPolicy": gang()}, {"schedulingPolicy": BASIC}, False),
        ({"schedulingConstraints": RACK}, {"schedulingPolicy": gang()}, False),
        ({}, {"schedulingPolicy": gang()}, False),
    ],
)
def test_policy_in_both_places_must_be_equal(nested: Object, by_name: Object, agreed: bool) -> None:
    policies = [replicated_job_policy("driver"), replicated_job_policy(**by_name)]
    causes = create_causes(nested, replicatedJobPolicies=policies)
    assert causes == ([] if agreed else [f"{NESTED}: Invalid"])


@pytest.mark.parametrize(
    ("word", "by_name", "agreed"),
    [
        ("JobAsGang", {"schedulingPolicy": gang(2)}, True),
        ("JobAsGang", {"disruptionMode": {"all": {}}}, True),
        ("JobAsGang", {"schedulingPolicy": BASIC}, False),
        ("NoGang", {"schedulingPolicy": BASIC}, True),
        ("NoGang", {"schedulingPolicy": gang()}, False),
    ],
)
def test_gang_policy_in_the_template_must_equal_the_listed_policy(
    word: str, by_name: Object, agreed: bool
) -> None:
    jobs = [job("driver"), workers(gangPolicy={"policy": word})]
    causes = create_causes(jobs=jobs, replicatedJobPolicies=[replicated_job_policy(**by_name)])
    field = "spec.replicatedJobs[1].template.spec.gangPolicy.policy"
    assert causes == ([] if agreed else [f"{field}: Invalid"])


def test_contradiction_error_names_both_places() -> None:
    job_set_spec = spec(
        {"schedulingPolicy": gang()}, replicatedJobPolicies=[replicated_job_policy()]
    )
    (cause,) = validate(JOB_SET, make_stored(JOB_SET, {"spec": job_set_spec}), None)
    assert cause.message.endswith(
        "must be absent or the same as in spec.scheduling.replicatedJobPolicies[0]"
    )


@pytest.mark.parametrize(
    ("jobs", "more"),
    [
        ([job("a"), dependent_job("b", "a")], {}),
        ([job("a"), job("b")], {"startupPolicy": {"startupPolicyOrder": "InOrder"}}),
    ],
)
def test_jobs_that_start_one_after_another_are_no_gang(jobs: list[Object], more: Object) -> None:
    job_set_spec = spec(jobs=jobs, schedulingPolicy=group_gang())
    gangs = "spec.scheduling.schedulingPolicy.gang"
    assert creation_causes(JOB_SET, {"spec": {**job_set_spec, **more}}) == [f"{gangs}: Forbidden"]
    singly: tuple[Object, ...] = ({"schedulingPolicy": BASIC}, {"replicatedJobPolicies": []})
    for fields in singly:
        assert creation_causes(JOB_SET, {"spec": {**spec(jobs=jobs, **fields), **more}}) == []


def test_one_sort_of_jobs_has_no_order() -> None:
    job_set_spec = spec(jobs=[job()], schedulingPolicy=group_gang())
    in_order = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    assert creation_causes(JOB_SET, {"spec": {**job_set_spec, **in_order}}) == []


@pytest.mark.parametrize(
    ("policy", "is_gang"), [(group_gang(), True), (None, True), (BASIC, False)]
)
def test_listed_job_without_a_policy_in_a_gang_is_a_gang(
    policy: Object | None, is_gang: bool
) -> None:
    root: Object = {} if policy is None else {"schedulingPolicy": policy}
    entry = replicated_job_policy(disruptionMode={"all": {}})
    assert (create_causes(replicatedJobPolicies=[entry], **root) == []) is is_gang


def test_pods_with_generated_groups_may_not_name_a_group() -> None:
    pods = {**PODS, "schedulingGroup": {"podGroupName": "g"}}
    jobs = [job("driver"), workers(pods=pods)]
    assert create_causes(jobs=jobs, schedulingPolicy=BASIC) == [
        "spec.replicatedJobs[1].template.spec.template.spec.schedulingGroup: Forbidden"
    ]
    assert creation_causes(JOB_SET, {"spec": {"replicatedJobs": jobs}}) == []


# ---- changes -------------------------------------------------------------------------------------


def update_causes(old: Object, scheduling: Object | None) -> CauseSummaries:
    kept = {key: value for key, value in old["spec"].items() if key != "scheduling"}
    more = {} if scheduling is None else {"scheduling": scheduling}
    return find_causes(JOB_SET, change_stored(JOB_SET, old, spec={**kept, **more}), old)


def test_only_the_size_of_gangs_of_pods_may_change() -> None:
    by_name = [replicated_job_policy(schedulingPolicy=gang(2))]
    said: Object = {"schedulingPolicy": group_gang(2), "replicatedJobPolicies": by_name}
    old = make_stored(JOB_SET, {"spec": spec(**said)})
    assert (
        update_causes(
            old,
            {**said, "replicatedJobPolicies": [replicated_job_policy(schedulingPolicy=gang(3))]},
        )
        == []
    )
    too_many = {**said, "replicatedJobPolicies": [replicated_job_policy(schedulingPolicy=gang(9))]}
    assert update_causes(old, too_many) == [
        "spec.scheduling.replicatedJobPolicies[0].schedulingPolicy.gang.minCount: Invalid"
    ]
    for other in (
        None,
        {"schedulingPolicy": group_gang(2)},
        {**said, "schedulingPolicy": BASIC},
        {**said, "schedulingPolicy": group_gang(1)},
        {**said, "schedulingConstraints": RACK},
        {**said, "replicatedJobPolicies": [replicated_job_policy(schedulingPolicy=BASIC)]},
        {**said, "replicatedJobPolicies": [*by_name, replicated_job_policy("driver")]},
    ):
        assert update_causes(old, other) == ["spec.scheduling: Invalid"]
    assert update_causes(make_stored(JOB_SET, {"spec": {}}), said)[0] == "spec.scheduling: Invalid"


def test_template_policies_follow_the_same_rules() -> None:
    old = make_stored(JOB_SET, {"spec": spec({"schedulingPolicy": gang(2)})})
    jobs = copy.deepcopy(old["spec"]["replicatedJobs"])

    def said(policy: Object) -> CauseSummaries:
        jobs[1]["template"]["spec"]["scheduling"] = {"schedulingPolicy": policy}
        new = change_stored(JOB_SET, old, spec={**old["spec"], "replicatedJobs": jobs})
        return find_causes(JOB_SET, new, old)

    assert said(gang(3)) == []
    assert said(gang()) == []
    assert said(BASIC) == ["spec.replicatedJobs: Invalid"]
