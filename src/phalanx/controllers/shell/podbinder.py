"""Binds what was placed pod by pod, as every API server can: the peer of `binder.Binder`.

Between the scheduling shell, which submits, and `pods/binding`; several at a time. A gang whose
members cannot all be bound is left to `intents`, and to the next cycle, in which those that were
bound count. A bind without an answer is looked up before it counts as failed. Never binds a pod of
another uid, nor one that has a node.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Conflict, ServerError, Timeout
from phalanx.api.kinds import BINDING, POD
from phalanx.api.scheduling import BINDING_INTENT, PodGroup
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.controllers.shell.binder import Attempt, Finished, Outcome, Trouble
from phalanx.controllers.shell.intents import Intents, bound_before
from phalanx.scheduler.decision import Binding
from phalanx.telemetry import NUMBER

#: Requests under way at a time, and the seconds that one may take.
LANES, LIMIT = 32, 10.0
#: Seconds after which what nobody answered to has happened or never will.
SETTLED = 5.0
#: Refusals that leave open whether anything was done.
_UNCERTAIN = (Unreachable, Timeout, ServerError)


@dataclass(slots=True)
class _Account:
    """How an attempt goes so far."""

    attempt: Attempt
    bound: list[Binding] = field(default_factory=list)
    failures: dict[Binding, Trouble] = field(default_factory=dict)

    @property
    def hopeless(self) -> Trouble | None:
        """What has put the members that are needed out of reach, if so."""
        entity, possible = self.attempt.entity, len(self.attempt.placed.bindings)
        if bound_before(entity) + possible - len(self.failures) >= entity.quorum:
            return None
        return next(iter(self.failures.values()), None)

    @property
    def enough(self) -> bool:
        """Whether the entity has what it needs, without those that are on their way elsewhere."""
        entity = self.attempt.entity
        return bound_before(entity) + len(self.bound) >= entity.quorum


class PodBinder:
    """Placed gangs and pods on their way to the server."""

    def __init__(self, client: Client, intents: Intents, finished: Finished) -> None:
        self._client, self._intents, self._finished = client, intents, finished
        self._waiting: asyncio.Queue[Attempt] = asyncio.Queue()
        self._lanes = asyncio.Semaphore(LANES)
        self._under_way = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything is still to be bound."""
        return bool(self._under_way)

    def submit(self, attempt: Attempt) -> None:
        """Have a gang or a pod bound."""
        self._under_way += 1
        self._waiting.put_nowait(attempt)

    async def run(self) -> None:
        """Bind until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._intents.run())
            while True:
                group.create_task(self._attempt(await self._waiting.get()))

    async def _attempt(self, attempt: Attempt) -> None:
        account = _Account(attempt)
        NUMBER.set(attempt.number)
        try:
            await self._bind(account)
        finally:
            self._under_way -= 1
        bound, failures = tuple(account.bound), account.failures
        self._finished(Outcome(attempt, bound, failures, account.enough))

    async def _bind(self, account: _Account) -> None:
        entity, bindings = account.attempt.entity, account.attempt.placed.bindings
        if not isinstance(entity.group, PodGroup) or not self._intents.is_needed(entity):
            await self._bind_all(account, "")
            return
        try:
            async with self._lanes:
                number = await self._intents.open(entity.group)
        except (ApiError, Unreachable) as error:
            account.failures = dict.fromkeys(bindings, error)
            return
        try:
            await self._bind_all(account, number)
        finally:
            self._intents.close(entity.key, number, enough=account.enough)

    async def _bind_all(self, account: _Account, number: str) -> None:
        if self._intents.is_undone(account.attempt.entity):
            gone = Conflict("members that were counted on are gone")
            account.failures = dict.fromkeys(account.attempt.placed.bindings, gone)
            return
        async with asyncio.TaskGroup() as group:
            for binding in account.attempt.placed.bindings:
                group.create_task(self._bind_one(account, binding, number))

    async def _bind_one(self, account: _Account, binding: Binding, number: str) -> None:
        async with self._lanes:
            if hopeless := account.hopeless:
                # Each further one would only have to be undone.
                account.failures[binding] = hopeless
                return
            trouble = await self._post(binding, number)
        if trouble is None or await self._is_bound(binding, trouble):
            account.bound.append(binding)
        else:
            account.failures[binding] = trouble

    async def _post(self, binding: Binding, number: str) -> Trouble | None:
        path = POD.path(binding.pod.namespace, binding.pod.name, "binding")
        try:
            async with asyncio.timeout(LIMIT):
                await self._client.post(path, _binding(binding, number))
        except (ApiError, Unreachable) as error:
            return error
        except TimeoutError:
            return Timeout(f"binding {binding.pod} took more than {LIMIT:g} s")
        return None

    async def _is_bound(self, binding: Binding, trouble: Trouble) -> bool:
        """Whether a bind was carried out after all, or before; its room is held meanwhile."""
        if not isinstance(trouble, (*_UNCERTAIN, Conflict)):
            return False
        if isinstance(trouble, _UNCERTAIN):
            await asyncio.sleep(SETTLED)
        try:
            async with asyncio.timeout(LIMIT):
                pod = await self._client.get(POD, binding.pod, Pod)
        except (ApiError, Unreachable, TimeoutError):
            return False
        return (pod.metadata.uid, pod.spec.node_name) == (binding.uid, binding.node)


def _binding(binding: Binding, number: str) -> Object:
    """What is sent. Its annotations become the pod's in the same write that gives it its node."""
    space, name = binding.pod
    meta: Object = {"name": name, "namespace": space, "uid": binding.uid}
    if number:
        meta["annotations"] = {BINDING_INTENT: number}
    return {
        "apiVersion": BINDING.api_version, "kind": BINDING.name, "metadata": meta,
        "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
    }  # fmt: skip
