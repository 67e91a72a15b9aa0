"""Evicts the victims of preemption: whole groups, one transaction per namespace.

Between the scheduler, which submits evictions, and the server's GroupEviction. On a foreign server
each victim gets a DisruptionTarget condition and is deleted, several at a time. A victim that no
longer exists makes room like an evicted one, but was not preempted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from phalanx import logs
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, ServerError
from phalanx.api.kinds import GROUP_EVICTION, POD, Kind
from phalanx.api.meta import Key, ObjectMeta, timestamp
from phalanx.api.scheduling import DISRUPTION_TARGET
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.scheduling.binder import RequestError
from phalanx.scheduler.decision import Victim
from phalanx.scheduler.entity import Entity
from phalanx.telemetry import REQUEST_ID

LOG = logs.component("scheduler")

PREEMPTION_REASON = "PreemptionByScheduler"
#: Maximum concurrent requests where each victim is deleted by itself.
MAX_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class Eviction:
    """The preemptor, its victims, and the groups that lose all of their pods or their quorum."""

    entity: Entity
    victims: tuple[Victim, ...]
    #: The victims as the scheduler knew them: the last one may be evicted when the first is gone.
    pods: Mapping[Victim, Pod]
    groups: tuple[tuple[Kind, ObjectMeta], ...] = ()
    #: When the preemption was decided.
    decided_at: float = 0.0

    @property
    def message(self) -> str:
        """The message of the DisruptionTarget condition of victims."""
        entity = self.entity
        return f"{entity.scheduler_name}: preempting to accommodate a higher priority {entity.kind}"

    @property
    def request_id(self) -> str:
        """The id of its requests and events."""
        return f"evict-{self.victims[0].uid}"


#: Called with an eviction and the errors by victim; `NotFound` for those that no longer existed.
OnEvictionFinished = Callable[[Eviction, Mapping[Victim, RequestError]], None]


class Evictor:
    """Evicts victims in the background; a foreign server has no GroupEviction."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        on_finished: OnEvictionFinished,
        *,
        is_foreign: bool = False,
    ) -> None:
        self._client, self._clock = client, clock
        self._on_finished, self._is_foreign = on_finished, is_foreign
        self._queue: asyncio.Queue[Eviction] = asyncio.Queue()
        self._request_slots = asyncio.Semaphore(MAX_REQUESTS)
        self._in_flight = 0

    @property
    def is_busy(self) -> bool:
        """Whether an eviction is queued or in progress."""
        return bool(self._in_flight)

    def submit(self, eviction: Eviction) -> None:
        """Queue an eviction."""
        self._in_flight += 1
        self._queue.put_nowait(eviction)

    async def run(self) -> None:
        """Evict until cancelled."""
        while True:
            eviction = await self._queue.get()
            evict = self._evict_pods if self._is_foreign else self._evict_groups
            REQUEST_ID.set(eviction.request_id)
            try:
                errors = await evict(eviction)
            except Exception as error:
                self._contain(error, "eviction failed", eviction)
                failure = ServerError(f"the eviction failed: {type(error).__name__}: {error}")
                errors = dict.fromkeys(eviction.victims, failure)
            finally:
                self._in_flight -= 1
            try:
                self._on_finished(eviction, errors)
            except Exception as error:
                self._contain(error, "outcome of an eviction not recorded", eviction)

    def _contain(self, error: Exception, message: str, eviction: Eviction) -> None:
        key = eviction.entity.key
        self._client.errors.contain(error, LOG, message, controller="scheduler", key=key)

    async def _evict_groups(self, eviction: Eviction) -> Mapping[Victim, RequestError]:
        errors: dict[Victim, RequestError] = {}
        for namespace, victims in _by_namespace(eviction.victims).items():
            try:
                path = GROUP_EVICTION.url_path(namespace)
                await self._client.post(path, _group_eviction(eviction, namespace, victims))
            except (ApiError, Unreachable) as error:
                errors |= dict.fromkeys(victims, error)
        return errors

    async def _evict_pods(self, eviction: Eviction) -> Mapping[Victim, RequestError]:
        errors: dict[Victim, RequestError] = {}
        async with asyncio.TaskGroup() as group:
            for victim in eviction.victims:
                group.create_task(self._evict_pod(victim, eviction.message, errors))
        for kind, meta in eviction.groups:
            await self._mark_disrupted(
                kind, meta.key, meta.uid, message=eviction.message, generation=meta.generation
            )
        return errors

    async def _evict_pod(
        self, victim: Victim, message: str, errors: dict[Victim, RequestError]
    ) -> None:
        async with self._request_slots:
            await self._mark_disrupted(POD, victim.pod, victim.uid, message=message)
            try:
                await self._client.delete(POD, victim.pod, uid=victim.uid)
            except (ApiError, Unreachable) as error:
                errors[victim] = error

    async def _mark_disrupted(
        self, kind: Kind, key: Key, uid: str, *, message: str, generation: int = 0
    ) -> None:
        """Set the DisruptionTarget condition; a failure does not prevent the eviction."""
        condition: Object = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": PREEMPTION_REASON,
            "message": message,
            "lastTransitionTime": timestamp(self._clock.now()),
        }
        if generation:
            condition["observedGeneration"] = generation
        change: Object = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        try:
            await self._client.patch(
                kind, key, change, content=STRATEGIC_PATCH, subresource="status"
            )
        except (ApiError, Unreachable) as error:
            LOG.warning("DisruptionTarget not written", kind=kind.name, key=key, reason=error)


def _by_namespace(victims: Iterable[Victim]) -> dict[str, list[Victim]]:
    by_namespace: dict[str, list[Victim]] = {}
    for victim in victims:
        by_namespace.setdefault(victim.pod.namespace, []).append(victim)
    return by_namespace


def _group_eviction(eviction: Eviction, namespace: str, victims: Sequence[Victim]) -> Object:
    return {
        "apiVersion": GROUP_EVICTION.api_version,
        "kind": GROUP_EVICTION.name,
        "reason": PREEMPTION_REASON,
        "message": eviction.message,
        "pods": [{"name": victim.pod.name, "uid": victim.uid} for victim in victims],
        "groups": [
            {"kind": kind.name, "name": meta.name, "uid": meta.uid}
            for kind, meta in eviction.groups
            if meta.namespace == namespace
        ],
    }
