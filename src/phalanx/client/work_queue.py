"""What a controller looks at next: a queue of keys, each at most once, in the order they came.

Between an informer's handlers, which add, and a controller's workers, which get and say when they
are done. Carries names only: a worker looks at the world as it is, so that ten changes of one
object are one piece of work. All waiting is the running loop's.

    key is           add            get               done           timer rings
    nowhere          queued         -                 -              queued
    queued           queued         worked on         -              queued
    worked on        to do again    -                 nowhere        to do again
    to do again      to do again    -                 queued         to do again
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

#: Seconds before the first repetition of a piece of work that failed, and the most before any.
BASE_DELAY, MAX_DELAY = 0.01, 60.0
#: Keys that a queue holds unless told otherwise.
CAPACITY = 1_000_000

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys to be worked on, by as many workers as there are; no two of them on one key.

    Bounded: a key for which there is no room is refused, and whoever added it adds it again later.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._queue: asyncio.Queue[K] = asyncio.Queue()
        #: Since when each key waits, or is worked on.
        self._queued: dict[K, float] = {}
        self._processing: dict[K, float] = {}
        self._dirty: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._retry_delays: dict[K, float] = {}
        #: How many keys were taken in so far, and how many of them after a failure.
        self.adds = self.retries = 0
        self._clock: Callable[[], float] = _zero_time
        #: Told of the seconds that each key has waited, and was worked on.
        self.on_dequeued: Callable[[float], None] = _ignore_duration
        self.on_processed: Callable[[float], None] = _ignore_duration

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, key: K) -> bool:
        """Have a key worked on; False if there is no room for it."""
        if key in self._queued or key in self._dirty:
            return True
        if not self._has_room():
            return False
        self.adds += 1
        if key in self._processing:
            self._dirty.add(key)
        else:
            self._put(key)
        return True

    def add_after(self, key: K, seconds: float) -> bool:
        """Have a key worked on in a while; of several such wishes the soonest counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is None and not self._has_room():
            return False
        if timer is None or loop.time() + seconds < timer.when():
            self._cancel_timer(key)
            self._timers[key] = loop.call_later(seconds, self._timer_fired, key)
        return True

    def retry(self, key: K) -> bool:
        """Have a key worked on again after a failure, each time in a longer while."""
        pause = self._retry_delays.get(key, BASE_DELAY)
        self._retry_delays[key] = min(2 * pause, MAX_DELAY)
        self.retries += 1
        return self.add_after(key, pause)

    def forget(self, key: K) -> None:
        """Let the next failure of a key be its first."""
        self._retry_delays.pop(key, None)

    def start(self, clock: Callable[[], float]) -> None:
        """Workers begin: from now on it is measured how long keys wait and are worked on."""
        self._clock, now = clock, clock()
        self._queued = dict.fromkeys(self._queued, now)

    async def get(self) -> K:
        """The next key, as soon as there is one; `done` must follow."""
        key = await self._queue.get()
        now = self._clock()
        self.on_dequeued(now - self._queued.pop(key))
        self._processing[key] = now
        return key

    def done(self, key: K) -> None:
        """Say that a worker has finished with a key, well or not."""
        self.on_processed(self._clock() - self._processing.pop(key))
        if key in self._dirty:
            self._dirty.remove(key)
            self._put(key)

    def close(self) -> None:
        """Stop all timers, so that nothing is added any more by itself."""
        for key in list(self._timers):
            self._cancel_timer(key)

    def _put(self, key: K) -> None:
        self._queued[key] = self._clock()
        self._queue.put_nowait(key)

    def _timer_fired(self, key: K) -> None:
        del self._timers[key]
        self.add(key)

    def _cancel_timer(self, key: K) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def _has_room(self) -> bool:
        return len(self._queued) + len(self._dirty) + len(self._timers) < self._capacity


def _zero_time() -> float:
    """The time before anybody works."""
    return 0.0


def _ignore_duration(seconds: float) -> None:
    """For those who measure nothing."""
