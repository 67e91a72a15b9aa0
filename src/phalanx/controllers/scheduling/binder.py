"""Binds what was placed: every gang whole, several gangs in one transaction when there are many.

Between the scheduling shell, which submits, and the server's GroupBinding. What waits while one
transaction is under way goes into the next. A transaction of several gangs that is refused is taken
apart, so that one gang's bad luck is not the others'. What was placed counting on members of its
gang that then could not be bound is not bound either. `podbinder.PodBinder` is its peer where there
is no GroupBinding.

Binds what was placed pod by pod, as every API server can: the peer of `binder.Binder`.

Between the scheduling shell, which submits, and `pods/binding`; several at a time. A gang whose
members cannot all be bound is left to `intents`, and to the next cycle, in which those that were
bound count. A bind without an answer is looked up before it counts as failed. Never binds a pod of
another uid, nor one that has a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Conflict, ServerError, Timeout
from phalanx.api.kinds import BINDING, GROUP_BINDING, POD
from phalanx.api.scheduling import BINDING_INTENT_ANNOTATION, PodGroup
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.controllers.scheduling.bind_intents import BindIntents, count_bound_members
from phalanx.scheduler.decision import Binding, Placed
from phalanx.scheduler.entity import Entity
from phalanx.telemetry import REQUEST_ID

#: Pods that one transaction of several gangs holds at most; a larger gang goes alone.
BATCH = 2000

#: What can go wrong with a bind.
RequestError = ApiError | Unreachable


class BindAttempt(NamedTuple):
    """An entity and where it was placed."""

    entity: Entity
    placed: Placed
    #: When the entity was taken from the queue.
    popped_at: float = 0.0

    @property
    def namespace(self) -> str:
        """Where its pods are."""
        return self.entity.key.namespace

    @property
    def request_id(self) -> str:
        """Under which it is bound, and told of."""
        return f"bind-{self.placed.bindings[0].uid}"


@dataclass(frozen=True, slots=True)
class BindResult:
    """What became of an attempt: who was bound and who was not, and why.

    `enough` says whether the entity is known to have all the members that it needs now, `told`
    whether the server has told users of it already.
    """

    attempt: BindAttempt
    bound: tuple[Binding, ...]
    failures: Mapping[Binding, RequestError]
    has_quorum: bool
    is_reported: bool = False


#: Called with what became of an attempt.
OnBindFinished = Callable[[BindResult], None]
#: What becomes of a group with its members bound, as a GroupBinding says it; nothing: leave it be.
GroupBindingStatus = Callable[[PodGroup], Object]


class GroupBinder:
    """A queue of placed gangs on their way to the server.

    `batched` hears how many pods were bound at once; `standing` is asked what each group says then.
    """

    def __init__(
        self, client: Client, on_finished: OnBindFinished,
        on_batch: Callable[[int], None] = lambda pods: None,
        group_status: GroupBindingStatus = lambda group: {},
    ) -> None:  # fmt: skip
        self._client, self._on_finished, self._on_batch = client, on_finished, on_batch
        self._group_status = group_status
        self._queue: list[BindAttempt] = []
        #: What was refused together and is now sent one by one.
        self._retry_alone: list[BindAttempt] = []
        self._wakeup = asyncio.Event()
        self._is_binding = False

    @property
    def is_busy(self) -> bool:
        """Whether anything is still to be bound."""
        return self._is_binding or bool(self._queue or self._retry_alone)

    def submit(self, attempt: BindAttempt) -> None:
        """Have a gang bound."""
        self._queue.append(attempt)
        self._wakeup.set()

    async def run(self) -> None:
        """Bind until cancelled."""
        while True:
            await self._wakeup.wait()
            batch = [self._retry_alone.pop(0)] if self._retry_alone else self._next_batch()
            self._is_binding = True
            await self._bind(batch)
            self._is_binding = False
            if not self._queue and not self._retry_alone:
                self._wakeup.clear()

    def _next_batch(self) -> list[BindAttempt]:
        """As many of the waiting as fit in one transaction: of one namespace, in order."""
        batch: list[BindAttempt] = []
        pods = 0
        for attempt in self._queue:
            pods += len(attempt.placed.bindings)
            if batch and (pods > BATCH or attempt.namespace != batch[0].namespace):
                break
            batch.append(attempt)
        del self._queue[: len(batch)]
        return batch

    async def _bind(self, batch: Sequence[BindAttempt]) -> None:
        error: RequestError | None = None
        REQUEST_ID.set(batch[0].request_id)
        try:
            path = GROUP_BINDING.url_path(batch[0].namespace)
            await self._client.post(path, self._group_binding(batch))
            self._on_batch(sum(len(attempt.placed.bindings) for attempt in batch))
        except (ApiError, Unreachable) as caught:
            error = caught
        if error is not None and len(batch) > 1:
            self._retry_alone.extend(batch)
            return
        void = self._remove_dependents(batch[0]) if error is not None else []
        for attempt in (*batch, *void):
            self._on_finished(_bind_result(attempt, error))

    def _group_binding(self, batch: Sequence[BindAttempt]) -> Object:
        bindings = [
            {"name": pod.name, "uid": uid, "node": node}
            for attempt in batch
            for pod, uid, node in attempt.placed.bindings
        ]
        leaves = [leaf.group for one in batch for leaf in one.entity.leaves]
        groups = [group for group in leaves if isinstance(group, PodGroup)]
        # A group that is there several times is named once, as it was placed last.
        latest = {group.metadata.uid: group for group in groups}
        return {
            "apiVersion": GROUP_BINDING.api_version,
            "kind": GROUP_BINDING.name,
            "bindings": bindings,
            "groups": [self._group_reference(group) for group in latest.values()],
        }

    def _group_reference(self, group: PodGroup) -> Object:
        identity = {"name": group.metadata.name, "uid": group.metadata.uid}
        standing = self._group_status(group)
        return {**identity, "standing": standing} if standing else identity

    def _remove_dependents(self, failed: BindAttempt) -> list[BindAttempt]:
        """Take out what waits of the same gang: it may need the members that have no node now."""
        gang = failed.entity.group
        if gang is None or (isinstance(gang, PodGroup) and not gang.is_gang):
            return []
        void = []
        for waiting in (self._retry_alone, self._queue):
            void += [one for one in waiting if one.entity.group_key == gang.metadata.key]
            waiting[:] = [one for one in waiting if one.entity.group_key != gang.metadata.key]
        return void


def _bind_result(attempt: BindAttempt, error: RequestError | None) -> BindResult:
    """All or none."""
    bindings = attempt.placed.bindings
    if error is None:
        return BindResult(attempt, bindings, {}, has_quorum=True, is_reported=True)
    return BindResult(attempt, (), dict.fromkeys(bindings, error), has_quorum=False)


#: Requests under way at a time, and the seconds that one may take.
MAX_REQUESTS, REQUEST_TIMEOUT = 32, 10.0
#: Seconds after which what nobody answered to has happened or never will.
SETTLE_SECONDS = 5.0
#: Refusals that leave open whether anything was done.
_AMBIGUOUS_ERRORS = (Unreachable, Timeout, ServerError)


@dataclass(slots=True)
class _BindProgress:
    """How an attempt goes so far."""

    attempt: BindAttempt
    bound: list[Binding] = field(default_factory=list)
    failures: dict[Binding, RequestError] = field(default_factory=dict)

    @property
    def fatal_error(self) -> RequestError | None:
        """What has put the members that are needed out of reach, if so."""
        entity, possible = self.attempt.entity, len(self.attempt.placed.bindings)
        if count_bound_members(entity) + possible - len(self.failures) >= entity.quorum:
            return None
        return next(iter(self.failures.values()), None)

    @property
    def has_quorum(self) -> bool:
        """Whether the entity has what it needs, without those that are on their way elsewhere."""
        entity = self.attempt.entity
        return count_bound_members(entity) + len(self.bound) >= entity.quorum


class PodBinder:
    """Placed gangs and pods on their way to the server."""

    def __init__(self, client: Client, intents: BindIntents, on_finished: OnBindFinished) -> None:
        self._client, self._intents, self._on_finished = client, intents, on_finished
        self._queue: asyncio.Queue[BindAttempt] = asyncio.Queue()
        self._request_slots = asyncio.Semaphore(MAX_REQUESTS)
        self._in_flight = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything is still to be bound."""
        return bool(self._in_flight)

    def submit(self, attempt: BindAttempt) -> None:
        """Have a gang or a pod bound."""
        self._in_flight += 1
        self._queue.put_nowait(attempt)

    async def run(self) -> None:
        """Bind until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._intents.run())
            while True:
                group.create_task(self._run_attempt(await self._queue.get()))

    async def _run_attempt(self, attempt: BindAttempt) -> None:
        account = _BindProgress(attempt)
        REQUEST_ID.set(attempt.request_id)
        try:
            await self._bind(account)
        finally:
            self._in_flight -= 1
        bound, failures = tuple(account.bound), account.failures
        self._on_finished(BindResult(attempt, bound, failures, account.has_quorum))

    async def _bind(self, progress: _BindProgress) -> None:
        entity, bindings = progress.attempt.entity, progress.attempt.placed.bindings
        if not isinstance(entity.group, PodGroup) or not self._intents.is_needed(entity):
            await self._bind_all(progress, "")
            return
        try:
            async with self._request_slots:
                number = await self._intents.open(entity.group)
        except (ApiError, Unreachable) as error:
            progress.failures = dict.fromkeys(bindings, error)
            return
        try:
            await self._bind_all(progress, number)
        finally:
            self._intents.close(entity.key, number, has_quorum=progress.has_quorum)

    async def _bind_all(self, progress: _BindProgress, intent_id: str) -> None:
        if self._intents.has_lost_members(progress.attempt.entity):
            gone = Conflict("members that were counted on are gone")
            progress.failures = dict.fromkeys(progress.attempt.placed.bindings, gone)
            return
        async with asyncio.TaskGroup() as group:
            for binding in progress.attempt.placed.bindings:
                group.create_task(self._bind_one(progress, binding, intent_id))

    async def _bind_one(self, progress: _BindProgress, binding: Binding, intent_id: str) -> None:
        async with self._request_slots:
            if hopeless := progress.fatal_error:
                # Each further one would only have to be undone.
                progress.failures[binding] = hopeless
                return
            trouble = await self._post_binding(binding, intent_id)
        if trouble is None or await self._is_bound(binding, trouble):
            progress.bound.append(binding)
        else:
            progress.failures[binding] = trouble

    async def _post_binding(self, binding: Binding, intent_id: str) -> RequestError | None:
        path = POD.url_path(binding.pod.namespace, binding.pod.name, "binding")
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await self._client.post(path, _binding_object(binding, intent_id))
        except (ApiError, Unreachable) as error:
            return error
        except TimeoutError:
            return Timeout(f"binding {binding.pod} took more than {REQUEST_TIMEOUT:g} s")
        return None

    async def _is_bound(self, binding: Binding, error: RequestError) -> bool:
        """Whether a bind was carried out after all, or before; its room is held meanwhile."""
        if not isinstance(error, (*_AMBIGUOUS_ERRORS, Conflict)):
            return False
        if isinstance(error, _AMBIGUOUS_ERRORS):
            await asyncio.sleep(SETTLE_SECONDS)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                pod = await self._client.get(POD, binding.pod, Pod)
        except (ApiError, Unreachable, TimeoutError):
            return False
        return (pod.metadata.uid, pod.spec.node_name) == (binding.uid, binding.node)


def _binding_object(binding: Binding, intent_id: str) -> Object:
    """What is sent. Its annotations become the pod's in the same write that gives it its node."""
    space, name = binding.pod
    meta: Object = {"name": name, "namespace": space, "uid": binding.uid}
    if intent_id:
        meta["annotations"] = {BINDING_INTENT_ANNOTATION: intent_id}
    return {
        "apiVersion": BINDING.api_version, "kind": BINDING.name, "metadata": meta,
        "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
    }  # fmt: skip
