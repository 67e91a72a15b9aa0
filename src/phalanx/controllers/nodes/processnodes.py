"""The kubelet of process nodes: starts a run for each pod that is bound there, and sees it off.

Never on by itself: somebody asks for such nodes by name of the option, and only pods on Nodes that
were made for it, of service accounts that may, are run (`podruns`). A pod that was running when
nobody ran it any more has failed: its processes are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.actions import Delete, perform
from phalanx.controllers.loop import Informers, NodeClient, observed_queue, work
from phalanx.controllers.nodes.consumption import Consumption
from phalanx.controllers.nodes.disruptedpods import status_patch
from phalanx.controllers.nodes.podreports import refused
from phalanx.controllers.nodes.podruns import PodRun
from phalanx.controllers.nodes.processes import Host

#: Pods that run side by side at most; the others wait.
_MOST = 256
#: Seconds until a pod is looked at again that could not be started, or whose namesake still runs.
_AGAIN = 1.0
#: Seconds that processes have when the nodes themselves end, and that are waited for that.
_FAREWELL, _PATIENCE = 0.8, 1.2
_LOST = refused("NodeRestarted", "its processes ended with the nodes that ran them")


class ProcessNodes:
    """The kubelets of the process nodes of these names, all in one; each asks as its node.

    What they measure they tell together, by the `client`.
    """

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, names: Collection[str],
        host: Host, of_node: NodeClient | None = None,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._names, self._host = client, clock, names, host
        self._of_node = of_node or (lambda name: client)
        self._pods = informers.of(POD, Pod).cache
        self._queue = observed_queue(client, type(self).__name__)
        self._runs: dict[Key, tuple[PodRun, asyncio.Task[None]]] = {}
        self._done: dict[Key, str] = {}
        self._group = asyncio.TaskGroup()
        self._pods.subscribe(self._changed)

    async def run(self) -> None:
        """Run what is bound there until cancelled; then everything ends."""
        async with asyncio.TaskGroup() as self._group:
            consumption = Consumption(self._client, lambda: [run for run, _ in self._runs.values()])
            self._group.create_task(consumption.run())
            try:
                await work(self._queue, self._attend)
            finally:
                await self._take_leave()

    async def _take_leave(self) -> None:
        """Have everything end, soon; what has not ended then is ended by force."""
        runs = list(self._runs.values())
        for run, _ in runs:
            run.stop(_FAREWELL)
        if runs:
            await asyncio.wait([task for _, task in runs], timeout=_PATIENCE)
        for _, task in runs:
            task.cancel()

    async def _attend(self, key: Key) -> float | None:
        """Do whatever is due about a pod; in how many seconds to look again."""
        pod, (run, _) = self._pods.get(key), self._runs.get(key, (None, None))
        if run is not None:
            return self._oversee(run, pod)
        if pod is None or pod.spec.node_name not in self._names:
            self._done.pop(key, None)
            return None
        client = self._of_node(pod.spec.node_name)
        is_done = pod.ended or self._done.get(key) == pod.metadata.uid
        if pod.metadata.deletion_timestamp:
            await perform(client, Delete(POD, key, pod.metadata.uid, grace=0))
        elif not is_done and pod.status.phase != "Pending":
            await perform(client, status_patch(pod, _LOST))
        elif not is_done:
            return self._start(key, pod)
        return None

    def _oversee(self, run: PodRun, pod: Pod | None) -> float | None:
        if pod is None or pod.metadata.uid != run.uid:
            run.stop(0)
            return _AGAIN
        if pod.metadata.deletion_timestamp:
            run.stop(float(pod.metadata.deletion_grace_period_seconds))
        return None

    def _start(self, key: Key, pod: Pod) -> float | None:
        if len(self._runs) >= _MOST:
            return _AGAIN
        run = PodRun(self._host, self._of_node(pod.spec.node_name), self._clock, pod)
        self._runs[key] = run, self._group.create_task(self._follow(key, run))
        return None

    async def _follow(self, key: Key, run: PodRun) -> None:
        """A run from its start to its end, and a look at what is due then."""
        try:
            await run.run()
            self._done[key] = run.uid
            again = 0.0
        except (ApiError, Unreachable):
            again = _AGAIN
        finally:
            del self._runs[key]
        self._queue.add_after(key, again)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and pod.spec.node_name in self._names:
            self._queue.add(pod.metadata.key)
