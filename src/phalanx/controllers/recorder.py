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
from phalanx.api.meta import Key, Meta, timestamp
from phalanx.api.wire import Object
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.telemetry import NUMBER, NUMBER_ANNOTATION

#: Events that may wait to be written; more are dropped, the oldest first.
CAPACITY = 50_000
#: Events that are remembered, to count their repetitions.
_REMEMBERED = 4096
_LONGEST_NOTE = 1024
#: Seconds that an event waits at most for a quiet moment, and how long such a moment is.
_PATIENCE, _MOMENT = 2.0, 0.02
#: Events that are written side by side before looking again whether something is more urgent.
_BATCH = 32

#: What makes two events the same one, happening again.
_Identity = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to tell about one object."""

    kind: Kind
    about: Meta
    reason: str
    message: str
    type: str = "Normal"
    #: Under which number it was done, if under any.
    number: str = ""

    @property
    def identity(self) -> _Identity:
        """The same for the same news of the same object."""
        return self.about.uid, self.reason, self.message


class Recorder:
    """Writes events for one component. `is_busy` says whether something more urgent is going on."""

    def __init__(
        self, client: Client, clock: Clock, chance: Chance, component: str,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._chance = client, clock, chance
        self._component, self._is_busy = component, is_busy
        self._waiting: deque[tuple[float, Note]] = deque(maxlen=CAPACITY)
        # How many there ever were, and had been when it was last looked for a quiet moment.
        self._recorded = self._seen = 0
        self._news = asyncio.Event()
        self._written: OrderedDict[_Identity, tuple[Key, int]] = OrderedDict()

    def record(self, note: Note) -> None:
        """Have something told."""
        if number := NUMBER.get():
            note = replace(note, number=number)
        self._waiting.append((self._clock.now(), note))
        self._recorded += 1
        self._news.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._news.wait()
            await self._quiet()
            await asyncio.gather(*(self._write(*told) for told in self._next()))
            if not self._waiting:
                self._news.clear()

    def _next(self) -> list[tuple[Note, str, int]]:
        """Some of the waiting, when each has happened last, and how often."""
        count = min(len(self._waiting), _BATCH)
        told = [self._waiting.popleft() for _ in range(count)]
        times = Counter(note.identity for _, note in told)
        last = {note.identity: (note, timestamp(at)) for at, note in told}
        return [(*last[identity], number) for identity, number in times.items()]

    async def _quiet(self) -> None:
        """Wait for a moment without anything urgent or new, unless somebody has waited enough."""
        while self._is_busy() or self._recorded > self._seen:
            if self._clock.now() - self._waiting[0][0] >= _PATIENCE:
                return
            self._seen = self._recorded
            await asyncio.sleep(_MOMENT)

    async def _write(self, note: Note, at: str, times: int) -> None:
        identity, count = note.identity, times
        try:
            if seen := self._written.get(identity):
                key, count = seen[0], seen[1] + times
                change = {"count": count, "lastTimestamp": at}
                await self._client.patch(EVENT, key, change)
            else:
                event = self._event(note, at, times)
                meta = event["metadata"]
                key = Key(meta["namespace"], meta["name"])
                await self._client.create(EVENT, event)
        except (ApiError, Unreachable):
            self._written.pop(identity, None)
            return
        self._written[identity] = key, count
        self._written.move_to_end(identity)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    def _event(self, note: Note, at: str, times: int) -> Object:
        about, message = note.about, note.message
        if len(message) > _LONGEST_NOTE:
            message = message[: _LONGEST_NOTE - 4] + " ..."
        space = about.namespace or "default"
        meta: Object = {"name": f"{about.name}.{self._chance.suffix(10)}", "namespace": space}
        if note.number:
            meta["annotations"] = {NUMBER_ANNOTATION: note.number}
        return {
            "metadata": meta,
            "involvedObject": {
                "kind": note.kind.name, "apiVersion": note.kind.api_version, "name": about.name,
                "namespace": about.namespace, "uid": about.uid,
                "resourceVersion": about.resource_version,
            },
            "reason": note.reason, "message": message, "type": note.type,
            "source": {"component": self._component}, "reportingComponent": self._component,
            "firstTimestamp": at, "lastTimestamp": at, "count": times,
        }  # fmt: skip
