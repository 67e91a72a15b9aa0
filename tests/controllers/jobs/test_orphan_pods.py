"""Removing the tracking finalizer of orphan pods."""

from __future__ import annotations

import pytest

from phalanx.api.core import Pod
from phalanx.api.kinds import JOB, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import Listing
from phalanx.controllers.jobs.job_pods import TRACKING_FINALIZER
from phalanx.controllers.jobs.pod_operations import OrphanPodReconciler
from tests.builders import in_virtual_time
from tests.builders import pod as bare_pod
from tests.controllers.jobs.job_controller_harness import job
from tests.controllers.trial_cluster import TrialCluster


def owner(api: str, kind: str, uid: str) -> Object:
    return {"apiVersion": api, "kind": kind, "name": "train", "uid": uid, "controller": True}


@pytest.mark.parametrize(
    ("controller", "will_be_adopted", "is_untracked"),
    [
        ("none", False, True),
        ("none", True, False),
        ("the Job", False, False),
        ("an earlier Job", False, True),
        ("another kind", False, False),
    ],
)
@in_virtual_time
async def test_finalizer_is_removed_if_the_api_confirms_that_the_pod_is_an_orphan(
    controller: str, will_be_adopted: bool, is_untracked: bool
) -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    await cluster.create(job())
    uid = (await cluster.client.get(JOB, Key("default", "train")))["metadata"]["uid"]
    owners = {
        "none": [],
        "the Job": [owner("batch/v1", "Job", uid)],
        "an earlier Job": [owner("batch/v1", "Job", "before")],
        "another kind": [owner("x.io/v1", "Job", "u")],
    }
    meta = {"finalizers": [TRACKING_FINALIZER], "ownerReferences": owners[controller]}
    await cluster.create(bare_pod("p", meta=meta))
    pods: ObjectCache[Pod] = ObjectCache()
    listing = await cluster.client.list(POD, Pod)
    pods.replace(Listing(listing.items, listing.revision))
    await OrphanPodReconciler(cluster.client, pods, lambda pod: will_be_adopted).reconcile(
        Key("default", "p")
    )
    finalizers = (await cluster.get_only(POD))["metadata"].get("finalizers", [])
    assert finalizers == ([] if is_untracked else [TRACKING_FINALIZER])
