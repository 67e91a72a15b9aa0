"""Fault trial scenarios of the node controllers."""

from __future__ import annotations

from phalanx.api.kinds import LEASE, NODE, POD
from phalanx.api.meta import Key, micro_timestamp
from phalanx.api.wire import Object
from phalanx.controllers.nodes.node_lifecycle import LEASE_NAMESPACE
from phalanx.controllers.pod_garbage_collector import OUT_OF_SERVICE
from tests.builders import node, pod
from tests.controllers.scenarios import patch_status
from tests.controllers.trial_cluster import TrialCluster


async def _renew_lease(stage: TrialCluster, name: str) -> None:
    """Renew the lease of a node."""
    spec = {"holderIdentity": "kubelet", "renewTime": micro_timestamp(stage.clock.now())}
    key = Key(LEASE_NAMESPACE, name)
    known = [one["metadata"]["name"] for one in await stage.list_objects(LEASE)]
    if name in known:
        await stage.client.patch(LEASE, key, {"spec": spec})
    else:
        meta = {"name": name, "namespace": LEASE_NAMESPACE}
        await stage.client.create(LEASE, {"metadata": meta, "spec": spec})


async def marks_unresponsive_node(stage: TrialCluster) -> None:
    await stage.create(node("a"), node("b"), pod("p", on="a"))
    for name in ("a", "b"):
        await _renew_lease(stage, name)
    for _ in range(8):
        await stage.wait(20)
        await _renew_lease(stage, "b")
    await stage.wait(10)


async def unmarks_node_with_heartbeats(stage: TrialCluster) -> None:
    await stage.create(node("a"), pod("p", on="a"))
    await _renew_lease(stage, "a")
    await stage.wait_until_idle()
    await _renew_lease(stage, "a")
    await patch_status(stage, NODE, "a", {"conditions": [{"type": "Ready", "status": "True"}]})
    await stage.wait(20)


async def taints_by_conditions(stage: TrialCluster) -> None:
    await stage.create(node("a"))
    await _renew_lease(stage, "a")
    await stage.patch(NODE, "a", {"spec": {"unschedulable": True}})
    conditions = [
        {"type": "MemoryPressure", "status": "True"},
        {"type": "Ready", "status": "False"},
    ]
    await patch_status(stage, NODE, "a", {"conditions": conditions})
    await stage.wait(20)
    await stage.patch(NODE, "a", {"spec": {"unschedulable": None}})
    await stage.wait(20)


_BROKEN: Object = {"key": "broken", "effect": "NoExecute"}


def _tolerating(seconds: int | None = None) -> Object:
    more = {} if seconds is None else {"tolerationSeconds": seconds}
    return {"tolerations": [{"key": "broken", "effect": "NoExecute", "operator": "Exists", **more}]}


async def evicts(stage: TrialCluster) -> None:
    await stage.create(node("a"), pod("p", on="a"), pod("q", on="a", spec=_tolerating()))
    await stage.wait_until_idle()
    await stage.patch(NODE, "a", {"spec": {"taints": [_BROKEN]}})


async def evicts_after_toleration(stage: TrialCluster) -> None:
    await stage.create(node("a"), pod("p", on="a", spec=_tolerating(30)))
    await stage.create(pod("q", on="a", spec=_tolerating(60)))
    await stage.patch(NODE, "a", {"spec": {"taints": [_BROKEN]}})
    await stage.wait(100)


async def cancels_eviction(stage: TrialCluster) -> None:
    await stage.create(node("a"), pod("p", on="a", spec=_tolerating(60)))
    await stage.patch(NODE, "a", {"spec": {"taints": [_BROKEN]}})
    await stage.wait(20)
    await stage.patch(NODE, "a", {"spec": {"taints": None}})
    await stage.wait(100)
    await stage.create(pod("q", on="a"))
    await stage.patch(NODE, "a", {"spec": {"taints": [_BROKEN]}})


async def collects_pods_of_a_lost_node(stage: TrialCluster) -> None:
    await stage.create(node("a"), node("b"), pod("p", on="a"), pod("q", on="b"))
    await stage.wait_until_idle()
    await stage.delete(NODE, "a")


async def collects_pods_of_an_out_of_service_node(stage: TrialCluster) -> None:
    held: Object = {"finalizers": ["example.com/stay"]}
    await stage.create(node("a"), pod("p", on="a", meta=held), pod("q", on="a"))
    await stage.wait_until_idle()
    await stage.delete(POD, "p")
    down = {"conditions": [{"type": "Ready", "status": "False"}]}
    await patch_status(stage, NODE, "a", down)
    taint = {"key": OUT_OF_SERVICE, "effect": "NoExecute"}
    await stage.patch(NODE, "a", {"spec": {"taints": [taint]}})


async def collects_terminated_pods(stage: TrialCluster) -> None:
    for number in range(4):
        await stage.create(pod(f"p{number}"))
        await stage.wait(2)
        await stage.finish("Succeeded")
    await stage.wait_until_idle()
    await stage.create(pod("p9"))
    await stage.wait_until_idle()
    await stage.finish("Failed")
