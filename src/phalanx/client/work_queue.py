"""Work queue of a controller: keys in the order they were added, each at most once.

Informer handlers add keys, workers get them and report when they are done. The queue carries keys
only: a worker reads the present state, so ten changes of one object are one reconcile.

    key is           add            get               done           timer fires
    absent           queued         -                 -              queued
    queued           queued         processing        -              queued
    processing       dirty          -                 absent         dirty
    dirty            dirty          -                 queued         dirty

`observe_queue` registers a queue in the Metrics of its process, under the names of Kubernetes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from phalanx.client.error_containment import ErrorContainment
from phalanx.telemetry import Counter, Gauge, Histogram, Metrics, MetricSpec, exponential_buckets

#: Seconds before the first retry, and the maximum before any.
BASE_DELAY, MAX_DELAY = 0.01, 60.0
#: Doublings after which the delay is at its maximum.
_MAX_DOUBLINGS = 16
#: Default capacity.
CAPACITY = 1_000_000
#: Bounds of the histograms, from ten nanoseconds on, as in Kubernetes.
_BUCKETS = exponential_buckets(1e-8, 10, 12)

QUEUE_DEPTH = MetricSpec(Gauge, "workqueue_depth", "Keys that wait to be worked on.", ("name",))
QUEUE_ADDS = MetricSpec(Counter, "workqueue_adds_total", "Keys that were added.", ("name",))
QUEUE_RETRIES = MetricSpec(
    Counter, "workqueue_retries_total", "Keys that are worked on again after a failure.", ("name",)
)  # fmt: skip
QUEUE_DURATION = MetricSpec(
    Histogram, "workqueue_queue_duration_seconds", "Seconds that a key waits to be worked on.",
    ("name",), _BUCKETS,
)  # fmt: skip
WORK_DURATION = MetricSpec(
    Histogram, "workqueue_work_duration_seconds", "Seconds that a key is worked on.",
    ("name",), _BUCKETS,
)  # fmt: skip
QUEUE_METRICS = (QUEUE_DEPTH, QUEUE_ADDS, QUEUE_RETRIES, QUEUE_DURATION, WORK_DURATION)

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys to process, for any number of workers; no two workers process one key.

    Bounded: a key that does not fit is refused, and its producer must add it again later. `errors`
    says what becomes of unexpected exceptions of its workers.
    """

    def __init__(
        self, capacity: int = CAPACITY, *, name: str = "", errors: ErrorContainment | None = None
    ) -> None:
        self.name, self.errors = name, errors or ErrorContainment(Metrics())
        self._capacity = capacity
        #: The time since when each key is queued, in the order of the queue.
        self._queued: OrderedDict[K, float] = OrderedDict()
        #: Workers that wait for a key.
        self._idle_workers: deque[asyncio.Future[None]] = deque()
        self._processing: dict[K, float] = {}
        self._dirty: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        #: Number of accepted keys, and of retries.
        self.adds = self.retries = 0
        #: Durations are measured from `start` on.
        self._clock: Callable[[], float] = lambda: 0.0
        #: Called with the seconds that a key was queued, and was processed.
        self.on_dequeued: Callable[[float], None] = _ignore_duration
        self.on_processed: Callable[[float], None] = _ignore_duration

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, key: K) -> bool:
        """Queue a key; return False if the queue is full."""
        if key in self._queued or key in self._dirty:
            return True
        if not self._has_capacity():
            return False
        self.adds += 1
        if key in self._processing:
            self._dirty.add(key)
        else:
            self._put(key)
        return True

    def add_after(self, key: K, seconds: float) -> bool:
        """Queue a key after a delay; the earliest of several delays counts."""
        if seconds <= 0:
            # uvloop gives no time for a callback without a delay, with which others are compared.
            self._cancel_timer(key)
            return self.add(key)
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is None and not self._has_capacity():
            return False
        if timer is None or loop.time() + seconds < timer.when():
            self._cancel_timer(key)
            self._timers[key] = loop.call_later(seconds, self._timer_fired, key)
        return True

    def add_rate_limited(self, key: K) -> bool:
        """Queue a key again after a failure, with exponential back-off per key."""
        delay = self.retry_delay(key)
        self._failures[key] = self.num_requeues(key) + 1
        self.retries += 1
        return self.add_after(key, delay)

    def num_requeues(self, key: K) -> int:
        """Return how often a key has failed since `forget`."""
        return self._failures.get(key, 0)

    def retry_delay(self, key: K) -> float:
        """Return the seconds that `add_rate_limited` waits: twice as long after each failure."""
        return min(BASE_DELAY * 2.0 ** min(self.num_requeues(key), _MAX_DOUBLINGS), MAX_DELAY)

    def forget(self, key: K) -> None:
        """Reset the back-off of a key."""
        self._failures.pop(key, None)

    def start(self, clock: Callable[[], float]) -> None:
        """Start measuring durations: workers begin."""
        self._clock, now = clock, clock()
        self._queued = OrderedDict.fromkeys(self._queued, now)

    async def get(self) -> K:
        """Return the next key as soon as there is one; `done` must follow."""
        while not self._queued:
            await self._wait_for_key()
        key, since = self._queued.popitem(last=False)
        now = self._clock()
        self.on_dequeued(now - since)
        self._processing[key] = now
        return key

    async def _wait_for_key(self) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle_workers.append(woken)
        try:
            await woken
        except asyncio.CancelledError:
            if woken in self._idle_workers:
                self._idle_workers.remove(woken)
            elif self._queued and not woken.cancelled():
                # Woken and cancelled at once: the key is for the next worker.
                self._wake_worker()
            raise

    def done(self, key: K) -> None:
        """Mark a key as processed, successfully or not."""
        self.on_processed(self._clock() - self._processing.pop(key))
        if key in self._dirty:
            self._dirty.remove(key)
            self._put(key)

    def close(self) -> None:
        """Cancel all timers."""
        for key in list(self._timers):
            self._cancel_timer(key)

    def _put(self, key: K) -> None:
        self._queued[key] = self._clock()
        self._wake_worker()

    def _wake_worker(self) -> None:
        while self._idle_workers:
            woken = self._idle_workers.popleft()
            if not woken.done():
                woken.set_result(None)
                return

    def _timer_fired(self, key: K) -> None:
        del self._timers[key]
        self.add(key)

    def _cancel_timer(self, key: K) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def _has_capacity(self) -> bool:
        return len(self._queued) + len(self._dirty) + len(self._timers) < self._capacity


def observe_queue(metrics: Metrics, name: str, queue: WorkQueue[Any]) -> None:
    """Register a work queue."""
    depth, adds = metrics.series(QUEUE_DEPTH, name), metrics.series(QUEUE_ADDS, name)
    retries = metrics.series(QUEUE_RETRIES, name)
    queue.on_dequeued = metrics.series(QUEUE_DURATION, name).observe
    queue.on_processed = metrics.series(WORK_DURATION, name).observe

    def read(queue: WorkQueue[Any]) -> None:
        depth.value, adds.value, retries.value = len(queue), queue.adds, queue.retries

    metrics.on_collect(queue, read)


def _ignore_duration(seconds: float) -> None:
    """Record nothing."""
