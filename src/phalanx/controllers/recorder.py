"""Events: what happened to an object, told to whoever reads `kubectl describe`.

Written at low priority: they wait in a bounded queue until nothing more urgent is under way, then
some go side by side, so that they share a commit. An event that repeats is counted instead of
written again. Losing one is no harm; holding up a bind is.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.api.errors import ApiError
from phalanx.api.kinds import EVENT, Kind
from phalanx.api.meta import Key, Meta, timestamp
from phalanx.api.wire import Object
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock

#: Events that may wait to be written; more are dropped, the oldest first.
CAPACITY = 50_000
#: Events that are remembered, to count their repetitions.
_REMEMBERED = 4096
_LONGEST_NOTE = 1024
#: Seconds that an event waits at most for a quiet moment, and how often it looks for one.
_PATIENCE, _LOOK = 2.0, 0.02
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
        self._waiting: deque[Note] = deque(maxlen=CAPACITY)
        self._news = asyncio.Event()
        self._written: OrderedDict[_Identity, tuple[Key, int]] = OrderedDict()

    def record(self, note: Note) -> None:
        """Have something told."""
        self._waiting.append(note)
        self._news.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._news.wait()
            await self._quiet()
            await asyncio.gather(*(self._write(*told) for told in self._next()))
            if not self._waiting:
                self._news.clear()

    def _next(self) -> list[tuple[Note, int]]:
        """Some of the waiting, and how often each has happened."""
        count = min(len(self._waiting), _BATCH)
        notes = [self._waiting.popleft() for _ in range(count)]
        times = Counter(note.identity for note in notes)
        return [(note, times[note.identity]) for note in {n.identity: n for n in notes}.values()]

    async def _quiet(self) -> None:
        waited = 0.0
        while self._is_busy() and waited < _PATIENCE:
            await asyncio.sleep(_LOOK)
            waited += _LOOK

    async def _write(self, note: Note, times: int) -> None:
        identity, count = note.identity, times
        try:
            if seen := self._written.get(identity):
                key, count = seen[0], seen[1] + times
                change = {"count": count, "lastTimestamp": timestamp(self._clock.now())}
                await self._client.patch(EVENT, key, change)
            else:
                event = self._event(note, times)
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

    def _event(self, note: Note, times: int) -> Object:
        about, now = note.about, timestamp(self._clock.now())
        message = note.message
        if len(message) > _LONGEST_NOTE:
            message = message[: _LONGEST_NOTE - 4] + " ..."
        space = about.namespace or "default"
        return {
            "metadata": {"name": f"{about.name}.{self._chance.suffix(10)}", "namespace": space},
            "involvedObject": {
                "kind": note.kind.name, "apiVersion": note.kind.api_version, "name": about.name,
                "namespace": about.namespace, "uid": about.uid,
                "resourceVersion": about.resource_version,
            },
            "reason": note.reason, "message": message, "type": note.type,
            "source": {"component": self._component}, "reportingComponent": self._component,
            "firstTimestamp": now, "lastTimestamp": now, "count": times,
        }  # fmt: skip
