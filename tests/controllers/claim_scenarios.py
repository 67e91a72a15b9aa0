"""User actions on ResourceClaims in fault trials of the resource claim controllers."""

from __future__ import annotations

from phalanx.api.kinds import POD, RESOURCE_CLAIM
from phalanx.api.wire import Object
from phalanx.controllers.resource_claims.reservations import PROTECTION_FINALIZER
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


async def creates_claims(stage: TrialCluster) -> None:
    await stage.create(_template(), *(pod(f"p{n}", spec=_claim_spec()) for n in range(2)))
    await stage.wait_until_idle()
    await stage.finish("Succeeded")


async def creates_claims_once_the_template_exists(stage: TrialCluster) -> None:
    await stage.create(pod("p", spec=_claim_spec()))
    await stage.wait_until_idle()
    await stage.create(_template())
    await stage.wait_until_idle()
    await stage.create(pod("q", spec=_claim_spec()))
    await stage.wait_until_idle()
    await stage.delete(POD, "p")


async def creates_claims_for_a_group(stage: TrialCluster) -> None:
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


async def reserves_for_running_pods(stage: TrialCluster) -> None:
    await stage.create(node("n"), _claim())
    await _allocate(stage)
    await stage.create(
        *(pod(f"p{n}", on="n", spec=_claim_spec(resourceClaimName="r")) for n in range(2))
    )
    await stage.wait_until_idle()
    await stage.delete(POD, "p0")


async def deallocates_an_unused_claim(stage: TrialCluster) -> None:
    await stage.create(node("n"), _claim())
    await _allocate(stage)
    await stage.create(pod("p", on="n", spec=_claim_spec(resourceClaimName="r")))
    await stage.wait_until_idle()
    await stage.delete(RESOURCE_CLAIM, "r")
    await stage.wait_until_idle()
    await stage.finish("Succeeded")


async def deletes_claims_of_finished_pods(stage: TrialCluster) -> None:
    await stage.create(_template(), node("n"))
    await stage.create(*(pod(f"p{n}", on="n", spec=_claim_spec()) for n in range(2)))
    await stage.wait_until_idle()
    await stage.finish("Succeeded")
