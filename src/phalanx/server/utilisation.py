"""The utilisation of the cluster over the last day, for the page: used and total amounts.

    store ─▶ sample every 15 s ─▶ 1 hour of samples, and one sample a minute for 24 hours

A sample sums the allocatable resources of all nodes, the requests of the pods that occupy them, the
devices of ResourceSlices and the allocated ones, and counts the pods that wait. The first sample
reads all of these objects; each later one only what has changed since:

    new sums = old sums - amounts of the objects as they were + amounts of the objects as they are

The samples are in memory only: a restarted server begins anew. Their number and the number of
resources are limited, so that they use less than one megabyte.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec
import orjson

from phalanx import logs
from phalanx.api.core import Node, Pod
from phalanx.api.kinds import NODE, POD, RESOURCE_CLAIM, RESOURCE_SLICE
from phalanx.api.resources import Amounts, node_allocatable, pod_requests
from phalanx.api.wire import Object
from phalanx.clock import Clock
from phalanx.server.objects import decode_record
from phalanx.store.kv import KeyValue, RevisionCompacted, Store

LOG = logs.component("server")
#: Seconds between two samples; how many are kept; of how many one is kept for a day; how many.
INTERVAL, RECENT, COARSE_STEP, COARSE = 15.0, 240, 4, 1440
#: The resources that every sample has, and how many extended resources more.
CPU, MEMORY, PODS, DEVICES, WAITING = "cpu", "memory", "pods", "devices", "waiting pods"
_COMMON = (CPU, MEMORY, PODS, DEVICES, WAITING)
_MAX_EXTENDED = 4
#: Objects or changes that are read before other requests have their turn, and changes after which
#: it is cheaper to read all objects anew.
_BATCH, _MAX_CHANGES = 200, 10_000
_MILLI = 1000
_decode_pod, _decode_node = msgspec.json.Decoder(Pod).decode, msgspec.json.Decoder(Node).decode


class UtilisationSample(NamedTuple):
    """Sums over the cluster at one time; amounts of CPU are thousandths."""

    time: float
    used: Amounts
    total: Amounts


class UtilisationHistory:
    """Samples of the last hour and of the last day, in two rings of numbers.

    A row is the time, then used and total amount of each known resource. A resource that appears
    later is zero in the rows before; more than `_MAX_EXTENDED` extended resources are left out.
    """

    def __init__(self) -> None:
        self._resources = list(_COMMON)
        self._recent: deque[array[float]] = deque(maxlen=RECENT)
        self._coarse: deque[array[float]] = deque(maxlen=COARSE)
        self._count = 0

    def add(self, sample: UtilisationSample) -> None:
        """Keep a sample; the oldest one is dropped."""
        for name in sample.total:
            is_full = len(self._resources) >= len(_COMMON) + _MAX_EXTENDED
            if "/" in name and name not in self._resources and not is_full:
                self._resources.append(name)
        row = array("d", (sample.time,))
        for name in self._resources:
            unit = _MILLI if name == CPU else 1
            row.extend((sample.used.get(name, 0) / unit, sample.total.get(name, 0) / unit))
        if self._count % COARSE_STEP == 0:
            self._coarse.append(row)
        self._recent.append(row)
        self._count += 1

    def render(self, since: float = 0.0) -> Object:
        """Return the samples after a time, oldest first, as the page reads them."""
        oldest = self._recent[0][0] if self._recent else 0.0
        rows = [row for row in self._coarse if row[0] < oldest]
        width = 1 + 2 * len(self._resources)
        points = [
            [*row, *[0.0] * (width - len(row))] for row in (*rows, *self._recent) if row[0] > since
        ]
        return {"interval": INTERVAL, "resources": list(self._resources), "points": points}


class _Sums:
    """The used and total amounts of the cluster as of a revision."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.used, self.total = dict.fromkeys(_COMMON, 0), dict.fromkeys(_COMMON, 0)

    def add(self, read: _Reader, record: KeyValue, sign: int) -> None:
        """Add the amounts of an object, or subtract them; an unreadable object has none."""
        try:
            used, total = read(record)
        except (msgspec.MsgspecError, ValueError, LookupError, TypeError, AttributeError):
            LOG.debug("object without utilisation: it cannot be read", key=record.key)
            return
        for sums, more in ((self.used, used), (self.total, total)):
            for name, amount in more.items():
                if name in _COMMON or "/" in name:
                    sums[name] = sums.get(name, 0) + sign * amount


class UtilisationSampler:
    """Adds a sample of a store to a history from time to time."""

    def __init__(self, store: Store, clock: Clock, history: UtilisationHistory) -> None:
        self._store, self._clock, self._history = store, clock, history
        #: The sums of the last sample; None if there is none.
        self._sums: _Sums | None = None

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            try:
                self._history.add(await self.sample())
            except Exception:
                # An unexpected error must not end the history.
                LOG.error("utilisation cannot be sampled", exc_info=True)
            await asyncio.sleep(INTERVAL)

    async def sample(self) -> UtilisationSample:
        """Sum up the cluster; gives way to other requests after every batch of objects."""
        sums, self._sums = self._sums, None
        if sums is None or self._store.revision - sums.revision > _MAX_CHANGES:
            sums = await self._read_all()
        else:
            try:
                await self._apply_changes(sums)
            except RevisionCompacted:
                sums = await self._read_all()
        self._sums = sums
        return UtilisationSample(self._clock.now(), dict(sums.used), dict(sums.total))

    async def _read_all(self) -> _Sums:
        sums = _Sums(self._store.revision)
        ranges = [(read, self._store.range(prefix)) for prefix, read in _READERS.items()]
        for read, records in ranges:
            for at, record in enumerate(records, 1):
                sums.add(read, record, 1)
                if at % _BATCH == 0:
                    await asyncio.sleep(0)
        return sums

    async def _apply_changes(self, sums: _Sums) -> None:
        """Subtract the changed objects as they were, and add them as they are.

        Of several changes of an object in a batch the first and the last state count.
        """
        while True:
            first: dict[str, KeyValue | None] = {}
            last: dict[str, KeyValue | None] = {}
            batch = list(islice(self._store.changes(sums.revision), _BATCH))
            for change in batch:
                if change.key.startswith(_PREFIXES):
                    first.setdefault(change.key, change.before)
                    last[change.key] = change.after
            for states, sign in ((first, -1), (last, 1)):
                for record in filter(None, states.values()):
                    read = next(
                        read for prefix, read in _READERS.items() if record.key.startswith(prefix)
                    )
                    sums.add(read, record, sign)
            if batch:
                sums.revision = batch[-1].revision
            if len(batch) < _BATCH:
                return
            await asyncio.sleep(0)


# ---- the amounts of an object --------------------------------------------------------------------

#: Returns the used and the total amounts of a stored object.
_Reader = Callable[[KeyValue], tuple[Amounts, Amounts]]


def _read_node(record: KeyValue) -> tuple[Amounts, Amounts]:
    return {}, node_allocatable(_decode_node(record.value))


def _read_pod(record: KeyValue) -> tuple[Amounts, Amounts]:
    pod = _decode_pod(record.value)
    if pod.occupied_node:
        return pod_requests(pod), {}
    is_waiting = not pod.is_terminal and not pod.metadata.deletion_timestamp
    return {WAITING: int(is_waiting)}, {}


def _read_slice(record: KeyValue) -> tuple[Amounts, Amounts]:
    return {}, {DEVICES: len(decode_record(record)["spec"].get("devices") or ())}


def _read_claim(record: KeyValue) -> tuple[Amounts, Amounts]:
    return {DEVICES: sum(1 for _ in _allocated_devices(decode_record(record)))}, {}


def _allocated_devices(claim: Object) -> Iterator[Object]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    yield from (allocation.get("devices") or {}).get("results") or ()


_READERS: Mapping[str, _Reader] = {
    NODE.store_prefix(): _read_node,
    POD.store_prefix(): _read_pod,
    RESOURCE_SLICE.store_prefix(): _read_slice,
    RESOURCE_CLAIM.store_prefix(): _read_claim,
}
_PREFIXES = tuple(_READERS)


def encode_history(history: UtilisationHistory, since: str) -> bytes:
    """Encode the samples after a time, given as text; all of them if it is no number."""
    try:
        after = float(since)
    except ValueError:
        after = 0.0
    return orjson.dumps(history.render(after))
