"""Events: what happened to an object, told to whoever reads `kubectl describe`.

Written at low priority: they wait in a bounded queue until nothing more urgent is under way, and an
event that repeats is counted instead of written again. Losing one is no harm; holding up a bind is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
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
#: Events that are written before looking again whether something more urgent is going on.
_BATCH = 200


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to tell about one object."""

    kind: Kind
    about: Meta
    reason: str
    message: str
    type: str = "Normal"


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
        self._written: OrderedDict[tuple[str, str, str], tuple[Key, int]] = OrderedDict()

    def record(self, note: Note) -> None:
        """Have something told."""
        self._waiting.append(note)
        self._news.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._news.wait()
            await self._quiet()
            for _ in range(min(len(self._waiting), _BATCH)):
                await self._write(self._waiting.popleft())
            if not self._waiting:
                self._news.clear()

    async def _quiet(self) -> None:
        waited = 0.0
        while self._is_busy() and waited < _PATIENCE:
            await asyncio.sleep(_LOOK)
            waited += _LOOK

    async def _write(self, note: Note) -> None:
        identity = (note.about.uid, note.reason, note.message)
        try:
            if seen := self._written.get(identity):
                key, count = seen[0], seen[1] + 1
                change = {"count": count, "lastTimestamp": timestamp(self._clock.now())}
                await self._client.patch(EVENT, key, change)
            else:
                event = self._event(note)
                meta = event["metadata"]
                key, count = Key(meta["namespace"], meta["name"]), 1
                await self._client.create(EVENT, event)
        except (ApiError, Unreachable):
            self._written.pop(identity, None)
            return
        self._written[identity] = key, count
        self._written.move_to_end(identity)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    def _event(self, note: Note) -> Object:
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
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
