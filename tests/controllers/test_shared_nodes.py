"""Our scheduler beside another one on the same nodes of a foreign server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.kinds import POD, PRIORITY_CLASS
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.api.workload_sources import CUSTOM_POD_GROUP, POLICY_ANNOTATION
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.controllers.controller_manager import ControllerManager, ControllerManagerConfig
from phalanx.controllers.registry import ControllerSelection
from phalanx.controllers.scheduler_runner import FOREIGN_SCHEDULER
from phalanx.randomness import SeededRandom
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster
from tests.controllers.custom_groups import (
    custom_cluster,
    custom_group,
    labelled_pods,
    running_scheduler,
)


class InterruptedTransport:
    """Calls `interrupt` before the first request that is chosen, and records all binds."""

    def __init__(
        self, c: Cluster, choose: Callable[[Request], bool],
        interrupt: Callable[[Request], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._inner = InProcessTransport(c.plane.server.handle, ADMIN)
        self._choose, self._interrupt, self._is_done = choose, interrupt, False
        self.bound: list[tuple[str, str]] = []

    async def send(self, request: Request) -> Reply | StreamReply:
        if not self._is_done and self._choose(request):
            self._is_done = True
            await self._interrupt(request)
        if request.path.endswith("/binding"):
            assert isinstance(request.body, dict)
            self.bound.append((request.path.split("/")[-2], request.body["target"]["name"]))
        return await self._inner.send(request)

    async def close(self) -> None:
        """Do nothing."""


def is_intent(request: Request) -> bool:
    return request.method == "PATCH" and b"binding-intent" in str(request.body).encode()


def is_bind(request: Request) -> bool:
    return request.path.endswith("/binding")


async def fill_node(c: Cluster, node: str) -> None:
    """Bind a pod of another scheduler to a node, and let its event arrive."""
    await c.create(pod("other", on=node, cpu="3"))
    await asyncio.sleep(0.1)


@in_virtual_time
async def test_gang_is_placed_again_if_another_scheduler_fills_its_node_before_the_first_bind() -> (
    None
):
    async with custom_cluster(nodes=3) as c:
        transport = InterruptedTransport(c, is_intent, lambda request: fill_node(c, "n0"))
        await c.client.create(CUSTOM_POD_GROUP, custom_group("a", 2))
        await c.create(*labelled_pods("a", 2, cpu="3"))
        async with running_scheduler(c, transport):
            await c.until_placed("a-0", "a-1")
            await asyncio.sleep(5)
        assert "n0" not in {node for _, node in transport.bound}
        assert len(transport.bound) == 2
        assert Counter((await c.node_by_pod()).values()) == {"n0": 1, "n1": 1, "n2": 1}
        assert await c.violations() == []


@in_virtual_time
async def test_gang_without_another_node_is_not_bound_in_part() -> None:
    async with custom_cluster(nodes=2) as c:
        transport = InterruptedTransport(c, is_intent, lambda request: fill_node(c, "n0"))
        await c.client.create(CUSTOM_POD_GROUP, custom_group("a", 2))
        await c.create(*labelled_pods("a", 2, cpu="3"))
        async with running_scheduler(c, transport):
            await asyncio.sleep(60)
            assert transport.bound == []
            await c.delete(POD, "other")
            await c.until_placed("a-0", "a-1")


@in_virtual_time
async def test_gang_job_is_whole_again_after_a_kubelet_rejected_a_member() -> None:
    async def occupy(request: Request) -> None:
        assert isinstance(request.body, dict)
        # No event arrives before the bind: both schedulers use the node at the same moment.
        await c.create(pod("other", on=request.body["target"]["name"], cpu="3"))

    job = {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": "train", "namespace": "default", "annotations": {POLICY_ANNOTATION: "gang"},
        },
        "spec": {
            "managedBy": "phalanx.dev/job-controller",
            "parallelism": 3, "completions": 3, "completionMode": "Indexed",
            "template": {"spec": pod(
                "x", spec={"schedulerName": FOREIGN_SCHEDULER, "restartPolicy": "Never"}, cpu="3"
            )["spec"]},
        },
    }  # fmt: skip
    async with custom_cluster(*workload_definitions(), nodes=4) as c:
        transport = InterruptedTransport(c, is_bind, occupy)
        manager = ControllerManager(
            Client(InProcessTransport(c.plane.server.handle, ADMIN)),
            c.clock,
            SeededRandom(2),
            on_ready=lambda names: None,
            config=ControllerManagerConfig(ControllerSelection()),
        )
        running = asyncio.create_task(manager.run())
        async with running_scheduler(c, transport):
            await c.create(job)
            await asyncio.sleep(60)
            pods = [one for name, one in (await c.pods()).items() if name != "other"]
            found = (await c.client.list(POD)).items
            assert "OutOfcpu" in {one["status"].get("reason") for one in found}
            live = [one for one in pods if not one.is_terminal]
            assert len({one.spec.node_name for one in live}) == 3
            assert {one.status.phase for one in live} == {"Running"}
            assert await c.violations() == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_pods_of_other_schedulers_are_evicted_only_if_that_is_allowed() -> None:
    for is_allowed, expected in ((False, ["other"]), (True, ["one-0"])):
        async with (
            custom_cluster(nodes=1) as c,
            running_scheduler(c, preempts_others=is_allowed),
        ):
            await c.client.create(PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000})
            await c.create(pod("other", on="n0", cpu="3"))
            await c.client.create(CUSTOM_POD_GROUP, custom_group("one", 1))
            (member,) = labelled_pods("one", 1, cpu="3")
            member["spec"]["priorityClassName"] = "high"
            await c.create(member)
            await asyncio.sleep(60)
            assert sorted(await c.node_by_pod()) == expected
