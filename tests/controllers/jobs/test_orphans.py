"""Pods that wait to be counted, and no Job is there to do it."""

from __future__ import annotations

import pytest

from phalanx.api.core import Pod
from phalanx.api.kinds import JOB, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.answers import Listing
from phalanx.client.cache import Cache
from phalanx.controllers.jobs.orphans import Orphans
from phalanx.controllers.jobs.roll import TRACKING
from tests.builders import in_virtual_time
from tests.builders import pod as bare_pod
from tests.controllers.jobs.work import job
from tests.controllers.trialstage import Stage


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
    stage = Stage()
    await stage.server.start()
    await stage.create(job())
    uid = (await stage.client.get(JOB, Key("default", "train")))["metadata"]["uid"]
    owners = {
        "nobody's": [], "the Job's": [owner("batch/v1", "Job", uid)],
        "an earlier Job's": [owner("batch/v1", "Job", "before")],
        "another kind's": [owner("x.io/v1", "Job", "u")],
    }  # fmt: skip
    meta = {"finalizers": [TRACKING], "ownerReferences": owners[whose]}
    await stage.create(bare_pod("p", meta=meta))
    pods: Cache[Pod] = Cache()
    listing = await stage.client.list(POD, Pod)
    pods.replace(Listing(listing.items, listing.revision))
    await Orphans(stage.client, pods, lambda pod: is_wanted).free(Key("default", "p"))
    held = (await stage.one(POD))["metadata"].get("finalizers", [])
    assert held == ([] if is_freed else [TRACKING])
