"""The environment of a fault run: a server, its users, and schedulers that start and stop.

It executes every step of a plan and nothing else. Refused requests of users are ignored; an
internal error of the server or of any other component ends the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from copy import deepcopy
from functools import singledispatchmethod
from typing import Any, NamedTuple

from phalanx.api.errors import ApiError, ServerError
from phalanx.api.kinds import (
    GROUP_BINDING,
    KINDS,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    RESOURCE_CLAIM,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Reply, Request, StreamReply, UserInfo
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.clock import Clock
from phalanx.controllers.garbage_collector import GarbageCollector
from phalanx.controllers.pod_groups import CompositeGroups, PodGroupProtection
from phalanx.controllers.reconcile_loop import Create, Delete, Informers, Patch, perform
from phalanx.controllers.resource_claims.controller import ResourceClaimController
from phalanx.controllers.resource_claims.reservations import ClaimReservationController
from phalanx.controllers.volumes.binder import VolumeBinder
from phalanx.controllers.volumes.ephemeral import EphemeralVolumeController
from phalanx.controllers.volumes.protection import ClaimProtection, VolumeProtection
from phalanx.controllers.volumes.provisioner import SimulatedProvisioner
from phalanx.randomness import Random
from phalanx.server.app import Server
from phalanx.server.security.authorization import MASTERS
from phalanx.store.memory import MemoryStore
from tools.faults import manifests
from tools.faults.channel import FaultyChannel, RequestFault
from tools.faults.claim_checks import check_request
from tools.faults.model import StoreLogReader
from tools.faults.plan import NAMESPACES
from tools.faults.scheduler_instance import DecisionRegister, DecisionVerifier, SchedulerInstance
from tools.faults.steps import (
    BindManually,
    BreakWatches,
    DelayWatches,
    DeleteOrphanedPods,
    DuplicateEvents,
    FailBinds,
    FailEvictions,
    FailRequests,
    FinishPod,
    InjectedFault,
    RemoveTerminatingPods,
    SlowCommits,
    StartScheduler,
    StopScheduler,
    UserAction,
)

#: A coroutine function that runs until it is cancelled.
Runnable = Callable[[], Coroutine[Any, Any, None]]
#: Minimum and maximum duration of a commit in seconds.
LATENCY = (0.0001, 0.002)
#: The number of schedulers that can run at a time.
SCHEDULER_SLOTS = 2
#: The kinds of a server without GroupBindings.
FOREIGN_KINDS = tuple(kind for kind in KINDS if kind.group != GROUP_BINDING.group)
#: The kinds whose dependents are deleted with their owners.
_COLLECTED_KINDS = (POD, POD_GROUP, RESOURCE_CLAIM, PERSISTENT_VOLUME_CLAIM)


class RunOptions(NamedTuple):
    """Whether pods claim volumes and devices, and whether the server binds pods one by one."""

    claims: bool = False
    is_foreign: bool = False


DEFAULT_OPTIONS = RunOptions()


class FaultEnvironment:
    """A server and everything around it, as tasks of a group."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        verifier: DecisionVerifier,
        *,
        tasks: asyncio.TaskGroup,
        options: RunOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._clock, self._random, self._verifier, self._tasks = clock, random, verifier, tasks
        self._options = options
        self._max_commit_seconds = 0.0
        self.store = MemoryStore(self._latency)
        self.store_log = StoreLogReader(self.store)
        self.decisions = DecisionRegister(self.store_log.pods, is_whole=not options.is_foreign)
        self.instances: dict[int, SchedulerInstance] = {}
        #: Violated invariants, and the number of steps by type, refused ones apart.
        self.violations: list[str] = []
        self.step_counts: Counter[str] = Counter()
        kinds = FOREIGN_KINDS if options.is_foreign else KINDS
        self._server = Server(self.store, clock, random, kinds=kinds)
        self._user = Client(self._transport("user"))
        self._channels = [
            FaultyChannel(self._transport("scheduler", self._handle_scheduler), random)
            for _ in range(SCHEDULER_SLOTS)
        ]
        self._channels[0].rejects_events = random.between(0, 1) < 0.9
        self._channels[1].rejects_events = True
        self._controllers: list[asyncio.Task[None]] = []
        self._scheduler_tasks: dict[int, asyncio.Task[None]] = {}
        self._step_tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start a server with namespaces and priority classes, and the controllers of groups."""
        await self._server.start()
        for name in NAMESPACES[1:]:
            labels = {"team": "a"}
            await self._user.create(NAMESPACE, {"metadata": {"name": name, "labels": labels}})
        for name, worth in manifests.PRIORITY_CLASSES.items():
            await self._user.create(PRIORITY_CLASS, {"metadata": {"name": name}, **worth})
        client = Client(self._transport("controllers"))
        informers = Informers(client, self._random)
        protection = PodGroupProtection(client, informers)
        composites = CompositeGroups(client, informers, self._clock)
        parts = [protection.run(), composites.run(), informers.run()]
        if self._options.claims:
            parts += [run() for run in self._build_claim_controllers(client, informers)]
        self._controllers = [self._tasks.create_task(part) for part in parts]

    def _build_claim_controllers(self, client: Client, informers: Informers) -> list[Runnable]:
        """Build the controllers of volumes and devices."""
        provisioner = SimulatedProvisioner(client, informers, self._clock, random=self._random)
        return [
            ResourceClaimController(client, informers).run,
            ClaimReservationController(client, informers).run,
            VolumeBinder(client, informers).run,
            ClaimProtection(client, informers, self._clock).run,
            VolumeProtection(client, informers).run,
            EphemeralVolumeController(client, informers).run,
            provisioner.run_claims,
            provisioner.run_volumes,
            GarbageCollector(client, informers, kinds=_COLLECTED_KINDS).run,
        ]

    async def close(self) -> None:
        """Stop everything."""
        for task in (*self._controllers, *self._scheduler_tasks.values()):
            task.cancel()
        await self._wait_for_steps()
        await self.store.close()

    def start_step(self, step: UserAction | InjectedFault) -> None:
        """Execute a step; what takes time continues in the background."""
        errand = self._tasks.create_task(self._run_step(step))
        self._step_tasks.add(errand)
        errand.add_done_callback(self._step_tasks.discard)

    async def remove_faults(self) -> None:
        """End all faults and leave one scheduler running."""
        await self._wait_for_steps()
        self._max_commit_seconds = 0.0
        for channel in self._channels:
            channel.heal()
        await self._stop(1)
        await self._start(0)

    def resync(self) -> None:
        """Make every scheduler list everything again."""
        self.store.compact(self.store.revision)
        for channel in self._channels:
            channel.break_watches()

    async def _wait_for_steps(self) -> None:
        while self._step_tasks:
            await asyncio.wait(self._step_tasks)
        for channel in self._channels:
            await channel.close()

    async def _run_step(self, act: UserAction | InjectedFault) -> None:
        try:
            await self._perform(act)
        except ApiError:
            self.step_counts[f"refused {type(act).__name__}"] += 1
        else:
            self.step_counts[type(act).__name__] += 1

    @singledispatchmethod
    async def _perform(self, act: UserAction | InjectedFault) -> None:
        raise NotImplementedError(act)

    @_perform.register
    async def _create(self, act: Create) -> None:
        # A copy: the server completes the object, and steps share parts of objects.
        await self._user.create(act.kind, deepcopy(act.obj))

    @_perform.register
    async def _patch(self, act: Patch) -> None:
        await perform(self._user, act)

    @_perform.register
    async def _delete(self, act: Delete) -> None:
        await perform(self._user, act)

    @_perform.register
    async def _finish(self, act: FinishPod) -> None:
        pod = self.store_log.pods.get(act.pod)
        if pod is not None and pod.occupied_node and not pod.metadata.deletion_timestamp:
            change = {"metadata": {"uid": pod.metadata.uid}, "status": {"phase": act.phase}}
            await perform(self._user, Patch(POD, act.pod, change, "status"))

    @_perform.register
    async def _bind(self, act: BindManually) -> None:
        pod = self.store_log.pods.get(act.pod)
        if pod is not None and Key("", act.node) in self.store_log.nodes:
            self.decisions.manually_bound[pod.metadata.uid] = None
            body = {
                "metadata": {"name": act.pod.name, "uid": pod.metadata.uid},
                "target": {"kind": NODE.name, "name": act.node},
            }
            await self._user.post(POD.url_path(*act.pod, "binding"), body)

    @_perform.register
    async def _delete_orphaned_pods(self, act: DeleteOrphanedPods) -> None:
        if Key("", act.node) in self.store_log.nodes:
            return
        for key, pod in list(self.store_log.pods.items()):
            if pod.spec.node_name == act.node:
                await perform(self._user, Delete(POD, key, pod.metadata.uid, 0))

    @_perform.register
    async def _remove_terminating(self, act: RemoveTerminatingPods) -> None:
        leaving = [pod for pod in self.store_log.pods.values() if pod.metadata.deletion_timestamp]
        for pod in leaving[: act.max_pods]:
            meta = pod.metadata
            await perform(self._user, Delete(POD, meta.key, meta.uid, 0))

    @_perform.register
    async def _start_scheduler(self, act: StartScheduler) -> None:
        await self._start(act.slot)

    @_perform.register
    async def _stop_scheduler(self, act: StopScheduler) -> None:
        await self._stop(act.slot)

    @_perform.register
    async def _delay_watches(self, act: DelayWatches) -> None:
        self._channels[act.slot].lag = act.seconds

    @_perform.register
    async def _duplicate_events(self, act: DuplicateEvents) -> None:
        self._channels[act.slot].duplicates_events = act.on

    @_perform.register
    async def _break_watches(self, act: BreakWatches) -> None:
        self._channels[act.slot].break_watches()
        if act.forget:
            self.store.compact(self.store.revision)

    @_perform.register
    async def _fail_binds(self, act: FailBinds) -> None:
        self._channels[act.slot].fail_binds(self._possible_faults(act.faults))

    @_perform.register
    async def _fail_evictions(self, act: FailEvictions) -> None:
        self._channels[act.slot].fail_evictions(self._possible_faults(act.faults))

    @_perform.register
    async def _fail_requests(self, act: FailRequests) -> None:
        until = asyncio.get_running_loop().time() + act.seconds
        faults = self._possible_faults(act.faults)
        self._channels[act.slot].fail_requests(until, act.share, faults)

    def _possible_faults(self, faults: tuple[RequestFault, ...]) -> tuple[RequestFault, ...]:
        """Return the faults of a server: a foreign one carries nothing out that late.

        What arrives after the next scheduler has started could give a device twice.
        """
        if not self._options.is_foreign:
            return faults
        return tuple(one for one in faults if one is not RequestFault.LATE)

    @_perform.register
    async def _slow_commits(self, act: SlowCommits) -> None:
        self._max_commit_seconds = act.seconds

    async def _start(self, slot: int) -> None:
        if slot and self._options.is_foreign:
            # A foreign server does not check that resources and devices suffice, so one scheduler
            # runs at a time, as leader election ensures.
            return
        if slot not in self._scheduler_tasks:
            instance = self.instances[slot] = SchedulerInstance(
                self._channels[slot],
                self._clock,
                self._random,
                store_log=self.store_log,
                decisions=self.decisions,
                verifier=self._verifier,
                report=self.violations.append,
                is_foreign=self._options.is_foreign,
            )
            self._scheduler_tasks[slot] = self._tasks.create_task(instance.run())

    async def _stop(self, slot: int) -> None:
        life = self._scheduler_tasks.pop(slot, None)
        if life is not None:
            del self.instances[slot]
            life.cancel()
            await asyncio.wait([life])
            if self._options.is_foreign:
                # The lease of a leader ends after its last request.
                await self._channels[slot].close()

    def _latency(self) -> float:
        low, high = LATENCY
        return self._random.between(low, self._max_commit_seconds or high)

    def _transport(
        self, name: str, handle: Callable[[Request], Awaitable[Reply | StreamReply]] | None = None
    ) -> InProcessTransport:
        return InProcessTransport(handle or self._handle, UserInfo(name, (MASTERS,)))

    async def _handle_scheduler(self, request: Request) -> Reply | StreamReply:
        if violation := check_request(request):
            self.violations.append(violation)
        return await self._handle(request)

    async def _handle(self, request: Request) -> Reply | StreamReply:
        answer = await self._server.handle(request)
        if answer.code == ServerError.code:
            self.violations.append(f"the server failed at {request.method} {request.path}")
        return answer
