"""Event expiry: the server deletes an Event some time after its last write.

Kubernetes stores Events with an etcd lease (`kube-apiserver --event-ttl`). Every write renews it.
Ours are deleted by the same rule, in batches. Watchers see DELETED, as they do when a lease
expires. Finalizers and quotas do not count.

    commit ─▶ write times, oldest first ─▶ timer ─▶ one transaction per batch of expired Events

Events of earlier processes are queued by their revision. Their write times are read from their
metadata when their turn comes, so that a start decodes none of them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from phalanx import logs
from phalanx.api.kinds import EVENT
from phalanx.api.meta import parse_timestamp
from phalanx.clock import Clock
from phalanx.server.objects import decode_record
from phalanx.store.kv import KeyValue, Store, StoreChange, StoreFailed, StoreWrite

LOG = logs.component("server")

#: Seconds after its last write when an Event expires, by default; 0: never.
EVENT_TTL = 3600.0
#: Events per transaction, and seconds at least between two checks for expired ones.
_BATCH_SIZE, _MIN_INTERVAL = 250, 1.0
_PREFIX = EVENT.store_prefix()


class EventExpirer:
    """Deletes the Events of a store `ttl` seconds after their last write."""

    def __init__(self, store: Store, clock: Clock, ttl: float) -> None:
        self._store, self._clock, self._ttl = store, clock, ttl
        #: Store key -> when the Event was written, oldest first; None: not determined yet. The
        #: times are those of the event loop, so that a clock that is set changes nothing.
        self._write_times: OrderedDict[str, float | None] = OrderedDict()
        self._clock_at_start = self._loop_time_at_start = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._deletion: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Queue the stored Events, and from now on all that are written."""
        if self._ttl:
            self._clock_at_start = self._clock.now()
            self._loop_time_at_start = asyncio.get_running_loop().time()
            stored = sorted(self._store.range(_PREFIX), key=lambda record: record.revision)
            self._write_times.update((record.key, None) for record in stored)
            self._store.subscribe(self._on_commit)
            self._schedule()

    def _on_commit(self, changes: Sequence[StoreChange]) -> None:
        events = [change for change in changes if change.key.startswith(_PREFIX)]
        if not events:
            return
        now, times = asyncio.get_running_loop().time(), self._write_times
        for change in events:
            times.pop(change.key, None)
            if change.after:
                times[change.key] = now
        self._schedule()

    def _schedule(self) -> None:
        """Set the timer for the oldest Event, unless it is set or a deletion will set it."""
        if self._write_times and self._timer is None and self._deletion is None:
            loop = asyncio.get_running_loop()
            delay = max(_MIN_INTERVAL, self._oldest_write() + self._ttl - loop.time())
            self._timer = loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._deletion = asyncio.get_running_loop().create_task(self._delete_expired())

    async def _delete_expired(self) -> None:
        try:
            # Nothing is awaited between reading the revisions and the commit: it cannot conflict.
            while writes := self._take_expired():
                await self._store.commit(writes)
                LOG.debug("events expired", count=len(writes))
        except StoreFailed:
            # The store has stopped, and so will the process.
            return
        self._deletion = None
        self._schedule()

    def _take_expired(self) -> list[StoreWrite]:
        writes: list[StoreWrite] = []
        now = asyncio.get_running_loop().time()
        while self._write_times and len(writes) < _BATCH_SIZE:
            if self._oldest_write() + self._ttl > now:
                break
            key, _ = self._write_times.popitem(last=False)
            record = self._store.get(key)
            # A write that is not committed yet renews the Event.
            if record and record == self._store.pending(key):
                writes.append(StoreWrite(key, None, record.revision))
        return writes

    def _oldest_write(self) -> float:
        key, written = next(iter(self._write_times.items()))
        if written is None:
            record, started = self._store.get(key), self._clock_at_start
            # A client can write any time to `managedFields`. One in the future must not delay the
            # expiry of this and all later Events.
            age = max(0.0, started - _stored_write_time(record)) if record else started
            written = self._write_times[key] = self._loop_time_at_start - age
        return written


def _stored_write_time(record: KeyValue) -> float:
    """When a stored Event was last written, as far as the server has recorded it."""
    meta = decode_record(record)["metadata"]
    times = [meta["creationTimestamp"]]
    times += [entry["time"] for entry in meta.get("managedFields", ()) if entry.get("time")]
    return max(map(parse_timestamp, times))
