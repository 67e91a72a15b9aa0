"""Rules of the volume claims that the Jobs of a JobSet share."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import JOB_SET
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored
from tests.api.validation.test_job_set import job

PODS = "spec.replicatedJobs[0].template.spec.template.spec"


def claim(name: str = "data", **meta: str) -> Object:
    wanted = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name, **meta}, "spec": wanted}


def workers(*mounts: str, **pods: Any) -> Object:
    main = {"name": "main", "image": "app:1"}
    paths = [{"name": name, "mountPath": f"/{name}"} for name in mounts]
    return job(pods={"containers": [{**main, "volumeMounts": paths}], **pods})


def create_causes(
    *templates: Object, jobs: list[Object] | None = None, name: str = "x"
) -> CauseSummaries:
    policies = [{"templates": [template]} for template in templates]
    spec = {"replicatedJobs": jobs or [workers("data")], "volumeClaimPolicies": policies}
    return creation_causes(JOB_SET, {"metadata": {"name": name}, "spec": spec})


def test_a_pod_mounts_what_only_the_job_set_brings() -> None:
    assert create_causes(claim()) == []
    assert create_causes(claim(), jobs=[job("driver"), workers("data")]) == []
    assert f"{PODS}.containers[0].volumeMounts[0].name: NotFound" in create_causes(
        claim(), jobs=[workers("other"), job("driver")]
    )


@pytest.mark.parametrize(
    ("templates", "causes"),
    [
        ([claim("Data")], ["spec.volumeClaimPolicies[0].templates[0].metadata.name: Invalid"]),
        ([claim("")], ["spec.volumeClaimPolicies[0].templates[0].metadata.name: Required"]),
        ([claim(namespace="n")],
         ["spec.volumeClaimPolicies[0].templates[0].metadata.namespace: Forbidden"]),
        ([claim(), claim()],
         ["spec.volumeClaimPolicies[1].templates[0].metadata.name: Duplicate"]),
        ([{"metadata": {"name": "data"}}],
         ["spec.volumeClaimPolicies[0].templates[0].spec.accessModes: Required",
          "spec.volumeClaimPolicies[0].templates[0].spec.resources[storage]: Required"]),
        ([claim(), claim("other")], ["spec.replicatedJobs: Invalid"]),
    ],
)  # fmt: skip
def test_each_claim_has_a_name_and_a_use(templates: list[Object], causes: CauseSummaries) -> None:
    reported = create_causes(*templates)
    assert [cause for cause in reported if "volumeMounts" not in cause][: len(causes)] == causes


def test_a_claim_is_called_after_its_template_and_the_job_set() -> None:
    assert create_causes(claim(), name="x" * 45) == []
    long = claim("c" * 30)
    assert create_causes(long, jobs=[workers("c" * 30)], name="x" * 40) == [
        "spec.volumeClaimPolicies[0].templates[0].metadata.name: Invalid"
    ]


def test_pod_templates_may_not_define_a_volume_of_a_shared_claim() -> None:
    own = workers(
        "data", volumes=[{"name": "own", "emptyDir": {}}, {"name": "data", "emptyDir": {}}]
    )
    assert create_causes(claim(), jobs=[own]) == [f"{PODS}.volumes[1].name: Invalid"]


def test_there_are_not_too_many() -> None:
    names = [f"c{at}" for at in range(51)]
    assert create_causes(*map(claim, names), jobs=[workers(*names)]) == [
        "spec.volumeClaimPolicies: TooMany"
    ]


def test_shared_claims_are_immutable() -> None:
    policies = [{"templates": [claim()]}]
    spec = {"replicatedJobs": [workers("data")], "volumeClaimPolicies": policies}
    old = make_stored(JOB_SET, {"spec": spec})
    kept = [{"templates": [claim()], "retentionPolicy": {"whenDeleted": "Retain"}}]
    new = change_stored(JOB_SET, old, spec={**old["spec"], "volumeClaimPolicies": kept})
    assert find_causes(JOB_SET, new, old) == ["spec.volumeClaimPolicies: Invalid"]
