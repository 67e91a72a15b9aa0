"""LeaderWorkerSets that other projects publish run on simulated nodes, unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from phalanx.api.kinds import POD_GROUP
from phalanx.api.wire import Object
from phalanx.controllers.nodes.node_pool import SimulatedNode
from tests.builders import in_virtual_time
from tests.controllers.cluster import cluster
from tests.controllers.leader_worker_sets.lws_cluster import LwsUser

FOLDER = Path(__file__).parent.parent.parent / "manifests"
CAPACITY = {
    "pods": "110", "cpu": "256", "memory": "2Ti", "ephemeral-storage": "2Ti", "nvidia.com/gpu": "8",
}  # fmt: skip
NODES = [
    SimulatedNode(f"n{number}", CAPACITY, {"cloud.google.com/gke-nodepool": f"pool-{number}"})
    for number in range(4)
]
#: A scheduler that does not run here: the pods wait for it.
OTHER_SCHEDULER = "lws-sample-volcano.yaml"


def read(path: Path) -> list[Object]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


PATHS = [
    path
    for path in sorted(FOLDER.rglob("*.yaml"))
    if any(one["kind"] == "LeaderWorkerSet" for one in read(path))
]


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@in_virtual_time
async def test_a_published_set_runs_as_gangs(path: Path) -> None:
    objects = read(path)
    async with cluster(nodes=NODES) as c:
        for one in objects:
            one["metadata"].setdefault("namespace", "default")
        await c.create(*objects)
        (lws,) = (one for one in read(path) if one["kind"] == "LeaderWorkerSet")
        user = LwsUser(c, lws["metadata"]["name"])
        await user.settle(10)
        replicas, size = lws["spec"]["replicas"], lws["spec"]["leaderWorkerTemplate"]["size"]
        assert len(await user.pods()) == replicas * size
        groups = (await user.objects(POD_GROUP)).values()
        quorums = [one["spec"]["schedulingPolicy"]["gang"]["minCount"] for one in groups]
        assert quorums == [size] * replicas
        if path.name == OTHER_SCHEDULER:
            assert await c.node_by_pod() == {}
            assert await user.true_conditions() == ["Progressing"]
        else:
            assert len(await c.node_by_pod()) == replicas * size
            assert await user.true_conditions() == ["Available"]
