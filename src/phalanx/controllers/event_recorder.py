"""Writes Events about objects, as `kubectl describe` shows them.

Events have low priority. They wait in a bounded queue until their component is idle; then a batch
is written concurrently, so that the writes share a commit. While the component stays busy, events
that have waited long enough are written at a limited rate, unless the queue is half full. An event
that repeats increases the count of the first one. An event may be lost; it must never delay a bind.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from phalanx import logs
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import EVENT, Kind
from phalanx.api.meta import Key, ObjectMeta, timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.randomness import Random
from phalanx.telemetry import REQUEST_ANNOTATION, REQUEST_ID

LOG = logs.component("events")

#: Events that may wait to be written; beyond that the oldest are dropped.
MAX_PENDING_EVENTS = 50_000
#: Written events that are remembered, to count their repetitions.
_MAX_AGGREGATED = 4096
_MAX_MESSAGE_LENGTH = 1024
#: Maximum seconds that an event waits for its component to be idle, and between two checks.
_MAX_DELAY, _IDLE_SECONDS = 2.0, 0.02
#: Events that are written concurrently before the next check whether the component is busy, and
#: the seconds between such batches while it is.
_BATCH_SIZE, _BUSY_SECONDS = 32, 0.25

#: Events with the same identity are repetitions of one another: uid, reason, message.
_EventIdentity = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An event about one object."""

    kind: Kind
    regarding: ObjectMeta
    reason: str
    message: str
    type: str = "Normal"
    #: The id of the request that caused the event, if any.
    request_id: str = ""
    #: The other object that the event is about, such as a preemptor, if any.
    related: Object | None = None

    @property
    def identity(self) -> _EventIdentity:
        """The identity by which repetitions are recognized."""
        return self.regarding.uid, self.reason, self.message


class EventRecorder:
    """Writes the events of one component; waits while `is_busy` returns True."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        *,
        component: str,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client, self._clock, self._random = client, clock, random
        self._component, self._is_busy = component, is_busy
        self._pending: deque[tuple[float, ObjectEvent]] = deque(maxlen=MAX_PENDING_EVENTS)
        # Events recorded so far, and at the time of the last check whether the component is idle.
        self._recorded_count = self._seen_count = 0
        self._wakeup = asyncio.Event()
        self._written: OrderedDict[_EventIdentity, tuple[Key, int]] = OrderedDict()

    def record(self, event: ObjectEvent) -> None:
        """Queue an event for writing."""
        if not self._client.records_events:
            return
        if request_id := REQUEST_ID.get():
            event = replace(event, request_id=request_id)
        self._pending.append((self._clock.now(), event))
        self._recorded_count += 1
        self._wakeup.set()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._wakeup.wait()
            is_idle = await self._wait_until_idle()
            await asyncio.gather(*(self._write(*entry) for entry in self._next_batch()))
            if not self._pending:
                self._wakeup.clear()
            elif not is_idle and len(self._pending) < MAX_PENDING_EVENTS // 2:
                await asyncio.sleep(_BUSY_SECONDS)

    def _next_batch(self) -> list[tuple[ObjectEvent, str, int]]:
        """Take events off the queue: each with its last timestamp and number of repetitions."""
        size = min(len(self._pending), _BATCH_SIZE)
        batch = [self._pending.popleft() for _ in range(size)]
        counts = Counter(event.identity for _, event in batch)
        last = {event.identity: (event, timestamp(at)) for at, event in batch}
        return [(*last[identity], count) for identity, count in counts.items()]

    async def _wait_until_idle(self) -> bool:
        """Wait until the component is idle and records nothing, but not beyond `_MAX_DELAY`.

        Returns whether it is idle.
        """
        while self._is_busy() or self._recorded_count > self._seen_count:
            if self._clock.now() - self._pending[0][0] >= _MAX_DELAY:
                return False
            self._seen_count = self._recorded_count
            await asyncio.sleep(_IDLE_SECONDS)
        return True

    async def _write(self, object_event: ObjectEvent, at: str, times: int) -> None:
        identity = object_event.identity
        try:
            key, count = await self._repeat_or_create(object_event, at, times)
        except (ApiError, Unreachable) as error:
            LOG.debug(
                "event dropped",
                kind=object_event.kind.name,
                key=object_event.regarding.key,
                event=object_event.reason,
                reason=error,
            )
            self._written.pop(identity, None)
            return
        except Exception as error:
            self._written.pop(identity, None)
            self._client.errors.contain(
                error,
                LOG,
                "event dropped",
                controller=self._component,
                kind=object_event.kind.name,
                key=object_event.regarding.key,
                event=object_event.reason,
            )
            return
        self._written[identity] = key, count
        self._written.move_to_end(identity)
        if len(self._written) > _MAX_AGGREGATED:
            self._written.popitem(last=False)

    async def _repeat_or_create(
        self, object_event: ObjectEvent, at: str, times: int
    ) -> tuple[Key, int]:
        """Increase the count of the written event, or write one; return its key and count."""
        if seen := self._written.get(object_event.identity):
            key, count = seen[0], seen[1] + times
            try:
                change = {"count": count, "lastTimestamp": at}
                await self._client.patch(EVENT, key, change, brief=True)
                return key, count
            except NotFound:
                # It has expired: the repetition is an event of its own.
                pass
        event = build_event(
            object_event, self._component, self._random.suffix(10), at=at, count=times
        )
        await self._client.create(EVENT, event, brief=True)
        return Key(event["metadata"]["namespace"], event["metadata"]["name"]), times


def build_event(
    event: ObjectEvent, component: str, suffix: str, *, at: str, count: int = 1
) -> Object:
    """Return the Event object; its name is that of the object and the suffix."""
    regarding, message = event.regarding, event.message
    if len(message) > _MAX_MESSAGE_LENGTH:
        message = message[: _MAX_MESSAGE_LENGTH - 4] + " ..."
    meta: Object = {
        "name": f"{regarding.name}.{suffix}",
        "namespace": regarding.namespace or "default",
    }
    if event.request_id:
        meta["annotations"] = {REQUEST_ANNOTATION: event.request_id}
    related = {"related": event.related} if event.related else {}
    return {
        "metadata": meta,
        **related,
        "involvedObject": {
            "kind": event.kind.name,
            "apiVersion": event.kind.api_version,
            "name": regarding.name,
            "namespace": regarding.namespace,
            "uid": regarding.uid,
            "resourceVersion": regarding.resource_version,
        },
        "reason": event.reason,
        "message": message,
        "type": event.type,
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": count,
    }
