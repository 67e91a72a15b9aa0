"""A server accepts and returns the objects of the builder."""

from __future__ import annotations

from types import ModuleType

import pytest

from phalanx.api.kinds import NAMESPACE
from phalanx.api.wire import Object
from phalanx.builder import jobs, jobsets, leaderworkersets
from tests.builder.item_trees import KINDS
from tests.builder.workload_owners import job, jobset, lws, replicated_job
from tests.builders import in_virtual_time
from tests.server.api import Api

GANG: Object = {"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}}}
RACK: Object = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}


def groups(owner: Object, workload: Object) -> list[Object]:
    match owner["kind"]:
        case "Job":
            return [jobs.build_pod_group(owner, workload)]
        case "JobSet":
            return jobsets.build_groups(owner, workload)
    return [leaderworkersets.build_pod_group(owner, workload, replica) for replica in range(2)]


@pytest.mark.parametrize(
    ("module", "owner"),
    [
        (jobs, job()),
        (jobs, job("j" * 63, parallelism=3, scheduling=GANG)),
        (jobsets, jobset(replicated_job("driver"), replicated_job("workers", 16, scheduling=RACK))),
        (jobsets, jobset(replicated_job("workers", 4), scheduling={"disruptionMode": {"all": {}}})),
        (leaderworkersets, lws()),
    ],
)
@in_virtual_time
async def test_server_accepts_every_built_object(module: ModuleType, owner: Object) -> None:
    api = await Api.start()
    await api.create(NAMESPACE, {"metadata": {"name": "team"}})
    built = module.build_workload(owner)
    (workload,) = await api.create(KINDS[built["kind"]], built)
    assert workload["spec"] == built["spec"]
    for group in groups(owner, workload):
        (stored,) = await api.create(KINDS[group["kind"]], group)
        assert {**stored["spec"], **group["spec"]} == stored["spec"]
        assert stored["metadata"]["ownerReferences"] == group["metadata"]["ownerReferences"]
