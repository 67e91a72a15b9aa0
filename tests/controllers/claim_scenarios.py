"""What users do with resource claims while the controllers of those are on trial."""

from __future__ import annotations

from phalanx.api.kinds import POD, RESOURCE_CLAIM
from phalanx.api.wire import Object
from phalanx.controllers.resource_claims.claims import PROTECTION_FINALIZER
from tests.builders import node, pod, pod_group
from tests.controllers.scenarios import patch_status
from tests.controllers.trial_cluster import TrialCluster


def _devices() -> Object:
    return {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "g"}}]}}


def _template() -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus", "namespace": "default"}, "spec": {"spec": _devices()},
    }  # fmt: skip


def _claim_spec(**how: str) -> Object:
    return {"resourceClaims": [{"name": "gpu", **(how or {"resourceClaimTemplateName": "gpus"})}]}


async def makes_claims(stage: TrialCluster) -> None:
    await stage.create(_template(), *(pod(f"p{n}", spec=_claim_spec()) for n in range(2)))
    await stage.wait_until_idle()
    await stage.finish("Succeeded")


async def makes_claims_when_it_is_known_how(stage: TrialCluster) -> None:
    await stage.create(pod("p", spec=_claim_spec()))
    await stage.wait_until_idle()
    await stage.create(_template())
    await stage.wait_until_idle()
    await stage.create(pod("q", spec=_claim_spec()))
    await stage.wait_until_idle()
    await stage.delete(POD, "p")


async def makes_claims_for_a_group(stage: TrialCluster) -> None:
    group = pod_group("train", 2)
    group["spec"] |= _claim_spec()
    await stage.create(_template(), group)
    await stage.create(*(pod(f"p{n}", "train", spec=_claim_spec()) for n in range(2)))
    await stage.wait_until_idle()
    await stage.finish("Succeeded")


def _claim(name: str = "r") -> Object:
    meta = {"name": name, "namespace": "default", "finalizers": [PROTECTION_FINALIZER]}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta,
        "spec": _devices(),
    }  # fmt: skip


async def _allocate(stage: TrialCluster, name: str = "r") -> None:
    await patch_status(stage, RESOURCE_CLAIM, name, {"allocation": {"devices": {}}})


async def reserves_for_those_who_run(stage: TrialCluster) -> None:
    await stage.create(node("n"), _claim())
    await _allocate(stage)
    await stage.create(
        *(pod(f"p{n}", on="n", spec=_claim_spec(resourceClaimName="r")) for n in range(2))
    )
    await stage.wait_until_idle()
    await stage.delete(POD, "p0")


async def gives_back_what_nobody_uses(stage: TrialCluster) -> None:
    await stage.create(node("n"), _claim())
    await _allocate(stage)
    await stage.create(pod("p", on="n", spec=_claim_spec(resourceClaimName="r")))
    await stage.wait_until_idle()
    await stage.delete(RESOURCE_CLAIM, "r")
    await stage.wait_until_idle()
    await stage.finish("Succeeded")


async def deletes_claims_of_those_who_are_done(stage: TrialCluster) -> None:
    await stage.create(_template(), node("n"))
    await stage.create(*(pod(f"p{n}", on="n", spec=_claim_spec()) for n in range(2)))
    await stage.wait_until_idle()
    await stage.finish("Succeeded")
