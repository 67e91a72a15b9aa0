"""Events: what happened to an object, told to whoever reads `kubectl describe`.

Written at low priority: they wait in a bounded queue until nothing more urgent is under way, then
some go side by side, so that they share a commit. An event that repeats is counted instead of
written again. Losing one is no harm; holding up a bind is.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from phalanx.api.errors import ApiError
from phalanx.api.kinds import EVENT, Kind
from phalanx.api.meta import Key, ObjectMeta, timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.randomness import Random
from phalanx.telemetry import REQUEST_ANNOTATION, REQUEST_ID

#: Events that may wait to be written; more are dropped, the oldest first.
MAX_PENDING_EVENTS = 50_000
#: Events that are remembered, to count their repetitions.
_MAX_AGGREGATED = 4096
_MAX_MESSAGE_LENGTH = 1024
#: Seconds that an event waits at most for a quiet moment, and how long such a moment is.
_MAX_DELAY, _IDLE_SECONDS = 2.0, 0.02
#: Events that are written side by side before looking again whether something is more urgent.
_BATCH_SIZE = 32

#: What makes two events the same one, happening again.
_EventIdentity = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """One thing to tell about one object."""

    kind: Kind
    regarding: ObjectMeta
    reason: str
    message: str
    type: str = "Normal"
    #: Under which number it was done, if under any.
    request_id: str = ""

    @property
    def identity(self) -> _EventIdentity:
        """The same for the same news of the same object."""
        return self.regarding.uid, self.reason, self.message


class EventRecorder:
    """Writes events for one component. `is_busy` says whether something more urgent is going on."""

    def __init__(
        self, client: Client, clock: Clock, random: Random, component: str,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._random = client, clock, random
        self._component, self._is_busy = component, is_busy
        self._pending: deque[tuple[float, ObjectEvent]] = deque(maxlen=MAX_PENDING_EVENTS)
        # How many there ever were, and had been when it was last looked for a quiet moment.
        self._recorded_count = self._seen_count = 0
        self._wakeup = asyncio.Event()
        self._written: OrderedDict[_EventIdentity, tuple[Key, int]] = OrderedDict()

    def record(self, event: ObjectEvent) -> None:
        """Have something told."""
        if number := REQUEST_ID.get():
            event = replace(event, request_id=number)
        self._pending.append((self._clock.now(), event))
        self._recorded_count += 1
        self._wakeup.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wakeup.wait()
            await self._wait_until_idle()
            await asyncio.gather(*(self._write(*told) for told in self._next_batch()))
            if not self._pending:
                self._wakeup.clear()

    def _next_batch(self) -> list[tuple[ObjectEvent, str, int]]:
        """Some of the waiting, when each has happened last, and how often."""
        count = min(len(self._pending), _BATCH_SIZE)
        told = [self._pending.popleft() for _ in range(count)]
        times = Counter(note.identity for _, note in told)
        last = {note.identity: (note, timestamp(at)) for at, note in told}
        return [(*last[identity], number) for identity, number in times.items()]

    async def _wait_until_idle(self) -> None:
        """Wait for a moment without anything urgent or new, unless somebody has waited enough."""
        while self._is_busy() or self._recorded_count > self._seen_count:
            if self._clock.now() - self._pending[0][0] >= _MAX_DELAY:
                return
            self._seen_count = self._recorded_count
            await asyncio.sleep(_IDLE_SECONDS)

    async def _write(self, object_event: ObjectEvent, at: str, times: int) -> None:
        identity, count = object_event.identity, times
        try:
            if seen := self._written.get(identity):
                key, count = seen[0], seen[1] + times
                change = {"count": count, "lastTimestamp": at}
                await self._client.patch(EVENT, key, change)
            else:
                event = self._event_object(object_event, at, times)
                meta = event["metadata"]
                key = Key(meta["namespace"], meta["name"])
                await self._client.create(EVENT, event)
        except (ApiError, Unreachable):
            self._written.pop(identity, None)
            return
        self._written[identity] = key, count
        self._written.move_to_end(identity)
        if len(self._written) > _MAX_AGGREGATED:
            self._written.popitem(last=False)

    def _event_object(self, event: ObjectEvent, at: str, times: int) -> Object:
        about, message = event.regarding, event.message
        if len(message) > _MAX_MESSAGE_LENGTH:
            message = message[: _MAX_MESSAGE_LENGTH - 4] + " ..."
        space = about.namespace or "default"
        meta: Object = {"name": f"{about.name}.{self._random.suffix(10)}", "namespace": space}
        if event.request_id:
            meta["annotations"] = {REQUEST_ANNOTATION: event.request_id}
        return {
            "metadata": meta,
            "involvedObject": {
                "kind": event.kind.name, "apiVersion": event.kind.api_version, "name": about.name,
                "namespace": about.namespace, "uid": about.uid,
                "resourceVersion": about.resource_version,
            },
            "reason": event.reason, "message": message, "type": event.type,
            "source": {"component": self._component}, "reportingComponent": self._component,
            "firstTimestamp": at, "lastTimestamp": at, "count": times,
        }  # fmt: skip
