"""Properties of Jobs, JobSets and LeaderWorkerSets: built as the server accepts, or rejected."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.errors import Cause, Invalid
from phalanx.api.wire import Object
from phalanx.builder import jobs, jobsets, leaderworkersets
from tests.builder.item_trees import errors_from_server

SCHEDULING: st.SearchStrategy[Object] = st.fixed_dictionaries(
    {},
    optional={
        "schedulingPolicy": st.sampled_from(
            [{"basic": {}}, {"gang": {}}, {"gang": {"minCount": 2}}, {"gang": {"minGroupCount": 2}}]
        ),
        "schedulingConstraints": st.sampled_from([{"topology": [{"key": "zone"}]}, {}]),
        "disruptionMode": st.sampled_from([{"single": {}}, {"all": {}}]),
    },
)
META = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True).map(
    lambda name: {"name": name, "namespace": "team", "uid": "uid-123"}
)
JOB_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "parallelism": st.integers(0, 9),
        "completions": st.integers(0, 9),
        "scheduling": SCHEDULING,
        "gangPolicy": st.sampled_from([{"policy": "JobAsGang"}]),
        "template": st.sampled_from([{"spec": {"priorityClassName": "high"}}, {"spec": {}}]),
    },
)
JOBS = st.fixed_dictionaries(
    {"apiVersion": st.just("batch/v1"), "kind": st.just("Job"), "metadata": META, "spec": JOB_SPECS}
)
ROLES = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["driver", "workers", "root", "eval"]),
            "replicas": st.integers(0, 4),
            "template": st.fixed_dictionaries({"spec": JOB_SPECS}),
        },
        optional={"dependsOn": st.just([{"name": "driver", "status": "Ready"}])},
    ),
    max_size=4,
    unique_by=lambda role: str(role["name"]),
)
JOB_SETS = st.fixed_dictionaries(
    {
        "apiVersion": st.just("jobset.x-k8s.io/v1alpha2"),
        "kind": st.just("JobSet"),
        "metadata": META,
        "spec": st.fixed_dictionaries(
            {"replicatedJobs": ROLES},
            optional={
                "scheduling": SCHEDULING,
                "startupPolicy": st.just({"startupPolicyOrder": "InOrder"}),
            },
        ),
    }
)
SETS = st.fixed_dictionaries(
    {
        "apiVersion": st.just("leaderworkerset.x-k8s.io/v1"),
        "kind": st.just("LeaderWorkerSet"),
        "metadata": META,
        "spec": st.fixed_dictionaries(
            {
                "leaderWorkerTemplate": st.fixed_dictionaries(
                    {"size": st.integers(1, 9), "workerTemplate": st.just({})}
                )
            },
            optional={
                "scheduling": SCHEDULING,
                "startupPolicy": st.sampled_from(["LeaderReady", "LeaderCreated"]),
            },
        ),
    }
)


def check_built_or_rejected(causes: list[Cause], build: Callable[[], list[Object]]) -> None:
    """Check that objects without causes pass server validation, and others are rejected."""
    if causes:
        with pytest.raises(Invalid):
            build()
    else:
        built = build()
        assert [errors_from_server(one) for one in built] == [[]] * len(built)


@given(JOBS)
def test_every_job_is_built_or_rejected_with_causes(job: Object) -> None:
    before = copy.deepcopy(job)

    def build() -> list[Object]:
        workload = jobs.build_workload(job)
        return [workload, jobs.build_pod_group(job, workload)]

    check_built_or_rejected(jobs.validate(job), build)
    assert job == before


@given(JOB_SETS)
def test_every_jobset_is_built_or_rejected_with_causes(jobset: Object) -> None:
    before = copy.deepcopy(jobset)

    def build() -> list[Object]:
        workload = jobsets.build_workload(jobset)
        return [workload, *jobsets.build_groups(jobset, workload)]

    check_built_or_rejected(jobsets.validate(jobset), build)
    assert jobset == before


@given(SETS)
def test_every_leaderworkerset_is_built_or_rejected_with_causes(lws: Object) -> None:
    before = copy.deepcopy(lws)

    def build() -> list[Object]:
        workload = leaderworkersets.build_workload(lws)
        return [workload, leaderworkersets.build_pod_group(lws, workload, 0)]

    check_built_or_rejected(leaderworkersets.validate(lws), build)
    assert lws == before
