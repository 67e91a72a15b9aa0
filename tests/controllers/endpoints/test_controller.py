"""Which changes of pods concern the slices of a Service."""

from __future__ import annotations

import asyncio

from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.client.work_queue import WorkQueue
from phalanx.controllers.endpoints.controller import EndpointSliceController
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import cluster

SET: Object = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "set", "namespace": "default"},
    "spec": {"clusterIP": "None", "selector": {"set": "a"}},
}


async def count_syncs(queue: WorkQueue[Key]) -> int:
    await asyncio.sleep(1)
    return queue.adds


@in_virtual_time
async def test_only_pods_with_an_address_queue_their_services() -> None:
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        client: Client = c.plane.client("endpoints")
        informers = Informers(client, SeededRandom(1))
        controller = EndpointSliceController(client, informers)
        tasks = [asyncio.create_task(run()) for run in (informers.run, controller.run)]
        await c.create(SET)
        queue = controller._loop.queue
        before = await count_syncs(queue)
        await c.create(pod("p", meta={"labels": {"set": "a"}}))
        assert await count_syncs(queue) == before
        status = {"status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]}}
        key = Key("default", "p")
        await client.patch(POD, key, status, subresource="status", content=STRATEGIC_PATCH)
        assert await count_syncs(queue) > before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
