"""Pods that wait to be counted, and no Job is there to do it."""

from __future__ import annotations

import pytest

from phalanx.api.core import Pod
from phalanx.api.kinds import JOB, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import Listing
from phalanx.controllers.jobs.job_pods import TRACKING_FINALIZER
from phalanx.controllers.jobs.pod_operations import OrphanPodReleaser
from tests.builders import in_virtual_time
from tests.builders import pod as bare_pod
from tests.controllers.jobs.job_controller_harness import job
from tests.controllers.trial_cluster import TrialCluster


def owner(api: str, kind: str, uid: str) -> Object:
    return {"apiVersion": api, "kind": kind, "name": "train", "uid": uid, "controller": True}


@pytest.mark.parametrize(
    ("whose", "is_wanted", "is_freed"),
    [
        ("nobody's", False, True),
        ("nobody's", True, False),
        ("the Job's", False, False),
        ("an earlier Job's", False, True),
        ("another kind's", False, False),
    ],
)
@in_virtual_time
async def test_a_pod_is_let_go_if_the_api_itself_says_that_it_has_nobody(
    whose: str, is_wanted: bool, is_freed: bool
) -> None:
    stage = TrialCluster()
    await stage.server.start()
    await stage.create(job())
    uid = (await stage.client.get(JOB, Key("default", "train")))["metadata"]["uid"]
    owners = {
        "nobody's": [], "the Job's": [owner("batch/v1", "Job", uid)],
        "an earlier Job's": [owner("batch/v1", "Job", "before")],
        "another kind's": [owner("x.io/v1", "Job", "u")],
    }  # fmt: skip
    meta = {"finalizers": [TRACKING_FINALIZER], "ownerReferences": owners[whose]}
    await stage.create(bare_pod("p", meta=meta))
    pods: ObjectCache[Pod] = ObjectCache()
    listing = await stage.client.list(POD, Pod)
    pods.replace(Listing(listing.items, listing.revision))
    await OrphanPodReleaser(stage.client, pods, lambda pod: is_wanted).release(Key("default", "p"))
    held = (await stage.get_only(POD))["metadata"].get("finalizers", [])
    assert held == ([] if is_freed else [TRACKING_FINALIZER])
