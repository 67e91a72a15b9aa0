"""Binds placed entities: in transactions (`GroupBinder`) or pod by pod (`PodBinder`).

`GroupBinder` sends the server's GroupBinding: every gang is bound as a whole, and gangs that wait
while a transaction is in progress share the next one. If a transaction of several gangs fails, each
is sent again alone, so that one invalid gang does not block the others. If a gang fails, queued
attempts of the same gang fail too: their placement counted on the members that have no node now.

`PodBinder` uses `pods/binding`, which every API server offers, with several requests at a time. If
not all members of a gang can be bound, `bind_intents` and the next cycles complete or undo it. A
bind without an answer is looked up before it counts as failed. The claims of all members are
written first (`claim_writer.py`).

Neither binds a pod of another uid, nor a pod that has a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from phalanx import logs
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Conflict, ServerError, Timeout
from phalanx.api.kinds import BINDING, GROUP_BINDING, POD
from phalanx.api.meta import Key
from phalanx.api.scheduling import BINDING_INTENT_ANNOTATION, PodGroup
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.controllers.scheduling.bind_intents import BindIntents, count_bound_members
from phalanx.controllers.scheduling.claim_writer import ClaimWriter
from phalanx.controllers.scheduling.device_prebinder import DevicePreBinder
from phalanx.controllers.scheduling.volume_prebinder import VolumePreBinder
from phalanx.scheduler.decision import Binding, ClaimReservation, Placed
from phalanx.scheduler.entity import Entity
from phalanx.telemetry import REQUEST_ID

LOG = logs.component("scheduler")

#: Maximum pods in a transaction of several gangs; a larger gang has its own transaction.
BATCH = 2000

#: The errors of a bind or eviction request.
RequestError = ApiError | Unreachable


class BindAttempt(NamedTuple):
    """An entity and its placement."""

    entity: Entity
    placed: Placed
    #: When the entity was popped from the queue.
    popped_at: float = 0.0
    #: Seconds within which its claims must be bound, and its devices prepared.
    volume_timeout: float = 600.0
    device_timeout: float = 600.0

    @property
    def namespace(self) -> str:
        """The namespace of its pods."""
        return self.entity.key.namespace

    @property
    def request_id(self) -> str:
        """The id of its requests and events."""
        return f"bind-{self.placed.bindings[0].uid}"


@dataclass(frozen=True, slots=True)
class BindResult:
    """The outcome of an attempt: the bound pods, and the error of each other pod.

    `has_quorum` says whether the entity has all members that it needs now; `is_reported` whether
    the server has already written conditions and events.
    """

    attempt: BindAttempt
    bound: tuple[Binding, ...]
    failures: Mapping[Binding, RequestError]
    has_quorum: bool
    is_reported: bool = False


#: Called with the outcome of an attempt.
OnBindFinished = Callable[[BindResult], None]
#: Returns the status of a group after the bind, for the GroupBinding; {} leaves it unchanged.
GroupBindingStatus = Callable[[PodGroup], Object]


def claim_binding(claim: ClaimReservation) -> Object:
    """Build the entry of a GroupBinding that allocates and reserves a claim."""
    entry: Object = {
        "name": claim.claim.name,
        "uid": claim.uid,
        "consumer": msgspec.to_builtins(claim.consumer),
    }
    if claim.allocation is not None:
        entry["allocation"] = claim.allocation
    if claim.spec is not None:
        entry["spec"] = claim.spec
        entry["requestMappings"] = list(claim.request_mappings)
    return entry


def contain_bind_error(client: Client, error: Exception, attempt: BindAttempt) -> ServerError:
    """Contain an unexpected exception of a bind; returns the error of the pods for it."""
    client.errors.contain(error, LOG, "bind failed", controller="scheduler", key=attempt.entity.key)
    return ServerError(f"the bind failed: {type(error).__name__}: {error}")


def finish_bind(client: Client, result: BindResult, on_finished: OnBindFinished) -> None:
    """Pass on the outcome of an attempt; an unexpected exception concerns this attempt alone."""
    try:
        on_finished(result)
    except Exception as error:
        message, key = "outcome of a bind not recorded", result.attempt.entity.key
        client.errors.contain(error, LOG, message, controller="scheduler", key=key)


@dataclass(slots=True)
class _PreBind:
    """One attempt whose claims are being bound."""

    finished: asyncio.Event = field(default_factory=asyncio.Event)
    has_failed: bool = True


class PreBindQueue:
    """Binds the claims of attempts before their pods; attempts of one gang keep their order.

    A later attempt of a gang counts on the members of the earlier ones: it waits for them, and
    fails with them. `on_started` is called when claims of an attempt must be bound first.
    """

    def __init__(
        self,
        volumes: VolumePreBinder | None = None,
        on_started: Callable[[BindAttempt], None] = lambda attempt: None,
        devices: DevicePreBinder | None = None,
    ) -> None:
        self._volumes, self._on_started, self._devices = volumes, on_started, devices
        #: The attempts of each gang that are not finished, in order.
        self._unfinished: dict[Key, list[_PreBind]] = {}

    def is_needed(self, attempt: BindAttempt) -> bool:
        """Whether an attempt cannot be bound at once."""
        if _gang_of(attempt) in self._unfinished:
            return True
        return self._needs_volumes(attempt) or self._needs_devices(attempt)

    def _needs_volumes(self, attempt: BindAttempt) -> bool:
        return self._volumes is not None and self._volumes.is_needed(attempt.placed.volumes)

    def _needs_devices(self, attempt: BindAttempt) -> bool:
        return self._devices is not None and self._devices.is_needed(attempt.placed.claims)

    async def bind_claims(self, attempt: BindAttempt) -> BindAttempt:
        """Bind the claims of an attempt; return the rest. Raises ApiError, Unreachable."""
        gang, volumes, own = _gang_of(attempt), attempt.placed.volumes, _PreBind()
        queue = self._unfinished.setdefault(gang, []) if gang is not None else []
        earlier = tuple(queue)
        queue.append(own)
        try:
            needs_volumes, needs_devices = (
                self._needs_volumes(attempt),
                self._needs_devices(attempt),
            )
            if needs_volumes or needs_devices:
                self._on_started(attempt)
            if self._volumes is not None and needs_volumes:
                await self._volumes.bind(volumes, attempt.volume_timeout)
            if self._devices is not None and needs_devices:
                claims = await self._devices.bind(
                    attempt.placed.claims,
                    attempt.device_timeout,
                    keeps_groups=has_other_members(attempt),
                )
                attempt = attempt._replace(placed=replace(attempt.placed, claims=claims))
            for one in earlier:
                await one.finished.wait()
                if one.has_failed:
                    await self.release(attempt)
                    raise Conflict("the claims of other members of the gang could not be bound")
            own.has_failed = False
            return attempt
        finally:
            own.finished.set()
            queue.remove(own)
            if gang is not None and not queue:
                self._unfinished.pop(gang, None)

    async def release(self, attempt: BindAttempt) -> None:
        """Release devices that were prepared for pods which could not be bound."""
        if self._devices is not None:
            keeps_groups = has_other_members(attempt)
            await self._devices.release(attempt.placed.claims, keeps_groups=keeps_groups)


def has_other_members(attempt: BindAttempt) -> bool:
    """Whether other members of the entity have, or are about to get, a node.

    They use the claims of the group.
    """
    return bool(attempt.entity.other_members)


def _gang_of(attempt: BindAttempt) -> Key | None:
    """Return the gang or tree of an attempt; None if its members do not depend on each other."""
    group = attempt.entity.group
    if group is None or (isinstance(group, PodGroup) and not group.is_gang):
        return None
    return group.metadata.key


class GroupBinder:
    """Binds placed entities with GroupBindings.

    `on_batch` is called with the number of pods of each transaction; `group_status` returns the
    status of each group after the bind.
    """

    def __init__(
        self,
        client: Client,
        on_finished: OnBindFinished,
        on_batch: Callable[[int], None] = lambda pods: None,
        *,
        group_status: GroupBindingStatus = lambda group: {},
        pre_binds: PreBindQueue | None = None,
    ) -> None:
        self._client, self._on_finished, self._on_batch = client, on_finished, on_batch
        self._group_status = group_status
        self._pre_binds = pre_binds or PreBindQueue()
        #: Attempts whose claims are bound first; they do not block others.
        self._pre_binding: asyncio.Queue[BindAttempt] = asyncio.Queue()
        self._queue: list[BindAttempt] = []
        #: Attempts of a failed transaction, to be sent one by one.
        self._retry_alone: list[BindAttempt] = []
        self._wakeup = asyncio.Event()
        self._is_binding = False

    @property
    def is_busy(self) -> bool:
        """Whether a bind is queued or in progress."""
        return self._is_binding or bool(self._queue or self._retry_alone)

    def submit(self, attempt: BindAttempt) -> None:
        """Queue an entity for binding."""
        if self._pre_binds.is_needed(attempt):
            self._pre_binding.put_nowait(attempt)
            return
        self._queue.append(attempt)
        self._wakeup.set()

    async def run(self) -> None:
        """Bind queued entities until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_transactions())
            while True:
                group.create_task(self._bind_claims(await self._pre_binding.get()))

    async def _bind_claims(self, attempt: BindAttempt) -> None:
        """Bind the claims of an attempt, then queue its pods."""
        error: RequestError
        REQUEST_ID.set(attempt.request_id)
        try:
            ready = await self._pre_binds.bind_claims(attempt)
        except (ApiError, Unreachable) as caught:
            error = caught
        except Exception as caught:
            error = contain_bind_error(self._client, caught, attempt)
        else:
            self._queue.append(ready)
            self._wakeup.set()
            return
        for one in (attempt, *self._remove_dependents(attempt)):
            failures = dict.fromkeys(one.placed.bindings, error)
            result = BindResult(one, (), failures, has_quorum=False)
            finish_bind(self._client, result, self._on_finished)

    async def _run_transactions(self) -> None:
        while True:
            await self._wakeup.wait()
            batch = [self._retry_alone.pop(0)] if self._retry_alone else self._next_batch()
            # Empty if what was queued failed with the claims of its gang.
            if batch:
                self._is_binding = True
                await self._bind(batch)
                self._is_binding = False
            if not self._queue and not self._retry_alone:
                self._wakeup.clear()

    def _next_batch(self) -> list[BindAttempt]:
        """Take attempts off the queue for one transaction: one namespace, in order."""
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
        except Exception as caught:
            error = contain_bind_error(self._client, caught, batch[0])
        if error is not None and len(batch) > 1:
            LOG.warning("GroupBinding failed, binding alone", groups=len(batch), reason=error)
            self._retry_alone.extend(batch)
            return
        dependents = self._remove_dependents(batch[0]) if error is not None else []
        for attempt in (*batch, *dependents):
            if error is not None and not isinstance(error, _AMBIGUOUS_ERRORS):
                await self._pre_binds.release(attempt)
            bindings = attempt.placed.bindings
            if error is None:
                result = BindResult(attempt, bindings, {}, has_quorum=True, is_reported=True)
            else:
                failures = dict.fromkeys(bindings, error)
                result = BindResult(attempt, (), failures, has_quorum=False)
            finish_bind(self._client, result, self._on_finished)

    def _group_binding(self, batch: Sequence[BindAttempt]) -> Object:
        bindings = [
            {"name": pod.name, "uid": uid, "node": node}
            for attempt in batch
            for pod, uid, node in attempt.placed.bindings
        ]
        leaves = [leaf.group for one in batch for leaf in one.entity.leaves]
        groups = [group for group in leaves if isinstance(group, PodGroup)]
        # A group with several attempts is listed once, in its latest version.
        latest = {group.metadata.uid: group for group in groups}
        request: Object = {
            "apiVersion": GROUP_BINDING.api_version,
            "kind": GROUP_BINDING.name,
            "bindings": bindings,
            "groups": [self._group_reference(group) for group in latest.values()],
        }
        if claims := [claim for attempt in batch for claim in attempt.placed.claims]:
            request["claims"] = [claim_binding(claim) for claim in claims]
        volumes = [one for attempt in batch for one in attempt.placed.volumes if one.volume]
        if volumes:
            request["volumes"] = [
                {"claim": one.claim.name, "uid": one.uid, "volume": one.volume} for one in volumes
            ]
        return request

    def _group_reference(self, group: PodGroup) -> Object:
        reference: Object = {"name": group.metadata.name, "uid": group.metadata.uid}
        if status := self._group_status(group):
            reference["standing"] = status
        return reference

    def _remove_dependents(self, failed: BindAttempt) -> list[BindAttempt]:
        """Remove queued attempts of the same gang: they counted on the failed members."""
        gang = failed.entity.group
        if gang is None or (isinstance(gang, PodGroup) and not gang.is_gang):
            return []
        removed = []
        for queue in (self._retry_alone, self._queue):
            removed += [one for one in queue if one.entity.group_key == gang.metadata.key]
            queue[:] = [one for one in queue if one.entity.group_key != gang.metadata.key]
        return removed


#: Maximum concurrent requests, and the seconds that one may take.
MAX_REQUESTS, REQUEST_TIMEOUT = 32, 10.0
#: Seconds after which a request without an answer has been carried out or never will be.
SETTLE_SECONDS = 5.0
#: Errors that leave open whether the request was carried out.
_AMBIGUOUS_ERRORS = (Unreachable, Timeout, ServerError)


@dataclass(slots=True)
class _BindProgress:
    """The progress of one attempt."""

    attempt: BindAttempt
    bound: list[Binding] = field(default_factory=list)
    failures: dict[Binding, RequestError] = field(default_factory=dict)

    @property
    def fatal_error(self) -> RequestError | None:
        """The error that makes the quorum unreachable, if it is."""
        entity, possible = self.attempt.entity, len(self.attempt.placed.bindings)
        if count_bound_members(entity) + possible - len(self.failures) >= entity.quorum:
            return None
        return next(iter(self.failures.values()), None)

    @property
    def has_quorum(self) -> bool:
        """Whether enough members are bound, not counting binds in progress."""
        entity = self.attempt.entity
        return count_bound_members(entity) + len(self.bound) >= entity.quorum


class PodBinder:
    """Binds placed entities pod by pod, with bind intents for gangs.

    The server does not check room, and other schedulers bind pods meanwhile. `find_overfull`
    returns those nodes of bindings that have become too full: before the first member is bound, and
    before each one. The rest of the entity, or all of it, is placed again.
    """

    def __init__(
        self,
        client: Client,
        intents: BindIntents,
        on_finished: OnBindFinished,
        *,
        claims: ClaimWriter | None = None,
        pre_binds: PreBindQueue | None = None,
        find_overfull: Callable[[Sequence[Binding]], Collection[str]] = lambda bindings: (),
    ) -> None:
        self._client, self._intents, self._on_finished = client, intents, on_finished
        self._find_overfull = find_overfull
        self._claims, self._pre_binds = claims, pre_binds or PreBindQueue()
        #: How many attempts wait for claims to be bound.
        self._pre_binding = 0
        self._queue: asyncio.Queue[BindAttempt] = asyncio.Queue()
        self._request_slots = asyncio.Semaphore(MAX_REQUESTS)
        self._in_flight = 0

    @property
    def is_busy(self) -> bool:
        """Whether a bind is queued or in progress."""
        return self._in_flight > self._pre_binding

    def submit(self, attempt: BindAttempt) -> None:
        """Queue an entity for binding."""
        self._in_flight += 1
        self._queue.put_nowait(attempt)

    async def run(self) -> None:
        """Bind queued entities until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._intents.run())
            while True:
                group.create_task(self._run_attempt(await self._queue.get()))

    async def _run_attempt(self, attempt: BindAttempt) -> None:
        progress = _BindProgress(attempt)
        REQUEST_ID.set(attempt.request_id)
        try:
            await self._bind(progress)
        except Exception as caught:
            error = contain_bind_error(self._client, caught, attempt)
            left = set(attempt.placed.bindings).difference(progress.bound, progress.failures)
            progress.failures |= dict.fromkeys(left, error)
        finally:
            self._in_flight -= 1
        result = BindResult(
            attempt, tuple(progress.bound), progress.failures, has_quorum=progress.has_quorum
        )
        finish_bind(self._client, result, self._on_finished)

    async def _bind(self, progress: _BindProgress) -> None:
        entity, bindings = progress.attempt.entity, progress.attempt.placed.bindings
        if self._fail_overfull(progress):
            return
        if not isinstance(entity.group, PodGroup) or not self._intents.is_needed(entity):
            await self._bind_all(progress, "")
            return
        try:
            async with self._request_slots:
                intent_id = await self._intents.open(entity.group)
        except (ApiError, Unreachable) as error:
            progress.failures = dict.fromkeys(bindings, error)
            return
        try:
            await self._bind_all(progress, intent_id)
        finally:
            self._intents.close(entity.key, intent_id, has_quorum=progress.has_quorum)

    async def _bind_all(self, progress: _BindProgress, intent_id: str) -> None:
        if self._intents.has_lost_members(progress.attempt.entity):
            error = Conflict("bound members of the gang were deleted after the placement")
            progress.failures = dict.fromkeys(progress.attempt.placed.bindings, error)
            return
        claims = left = progress.attempt.placed.claims
        try:
            if self._pre_binds.is_needed(progress.attempt):
                self._pre_binding += 1
                try:
                    left = (await self._pre_binds.bind_claims(progress.attempt)).placed.claims
                finally:
                    self._pre_binding -= 1
            if claims and self._claims is not None:
                await self._claims.reserve(left)
        except (ApiError, Unreachable) as error:
            progress.failures = dict.fromkeys(progress.attempt.placed.bindings, error)
            if left is not claims:
                await self._pre_binds.release(progress.attempt)
            return
        if not self._fail_overfull(progress):
            async with asyncio.TaskGroup() as group:
                for binding in progress.attempt.placed.bindings:
                    group.create_task(self._bind_one(progress, binding, intent_id))
        if claims and self._claims is not None:
            failed = {binding.uid for binding in progress.failures}
            keeps_groups = bool(progress.bound) or has_other_members(progress.attempt)
            await self._claims.settle(claims, failed, keeps_groups=keeps_groups)

    def _fail_overfull(self, progress: _BindProgress) -> bool:
        """Let an attempt fail of which too few members would still fit, before any is bound."""
        bindings = progress.attempt.placed.bindings
        nodes = self._find_overfull(bindings)
        failures = {one: _overfull_error(one) for one in bindings if one.node in nodes}
        probe = _BindProgress(progress.attempt, failures=dict(failures))
        if (error := probe.fatal_error) is None:
            return False
        progress.failures = dict.fromkeys(bindings, error) | failures
        return True

    async def _bind_one(self, progress: _BindProgress, binding: Binding, intent_id: str) -> None:
        async with self._request_slots:
            if self._find_overfull([binding]):
                progress.failures[binding] = _overfull_error(binding)
                return
            if fatal_error := progress.fatal_error:
                # Every further bind would have to be undone.
                progress.failures[binding] = fatal_error
                return
            error = await self._post_binding(binding, intent_id)
        if error is None or await self._is_bound(binding, error):
            progress.bound.append(binding)
        else:
            progress.failures[binding] = error

    async def _post_binding(self, binding: Binding, intent_id: str) -> RequestError | None:
        path = POD.url_path(binding.pod.namespace, binding.pod.name, "binding")
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await self._client.post(path, _binding_object(binding, intent_id))
        except (ApiError, Unreachable) as error:
            return error
        except TimeoutError:
            return Timeout(f"binding {binding.pod} took longer than {REQUEST_TIMEOUT:g} s")
        return None

    async def _is_bound(self, binding: Binding, error: RequestError) -> bool:
        """Whether a failed bind was carried out after all; its resources stay assumed meanwhile."""
        if not isinstance(error, (*_AMBIGUOUS_ERRORS, Conflict)):
            return False
        if isinstance(error, _AMBIGUOUS_ERRORS):
            LOG.warning(
                "bind without an answer, checking", kind="Pod", key=binding.pod, reason=error
            )
            await asyncio.sleep(SETTLE_SECONDS)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                pod = await self._client.get(POD, binding.pod, Pod)
        except (ApiError, Unreachable, TimeoutError):
            return False
        return (pod.metadata.uid, pod.spec.node_name) == (binding.uid, binding.node)


def _overfull_error(binding: Binding) -> Conflict:
    return Conflict(f"node {binding.node} has no room left: other pods were bound to it meanwhile")


def _binding_object(binding: Binding, intent_id: str) -> Object:
    """Build the request. Its annotations become the pod's in the write that sets the node."""
    namespace, name = binding.pod
    meta: Object = {"name": name, "namespace": namespace, "uid": binding.uid}
    if intent_id:
        meta["annotations"] = {BINDING_INTENT_ANNOTATION: intent_id}
    return {
        "apiVersion": BINDING.api_version,
        "kind": BINDING.name,
        "metadata": meta,
        "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
    }
