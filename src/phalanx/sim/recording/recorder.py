"""ClusterRecorder: watches what a scheduler reads, and writes a line for every change.

    server ─▶ informers ─▶ trim ─▶ (anonymize) ─▶ lines ─▶ file

It needs rights to list and watch alone. A kind that may not be read, or is not served, is named in
the recording and left out; only pods are required. Objects of one namespace are recorded where the
rights, or the user, do not reach further. The memory is that of the informers, which hold each
object once, and a hash of the last line of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from phalanx.api.batch import Job, job_run_time
from phalanx.api.core import Namespace, Node, Pod, Service
from phalanx.api.errors import ApiError, Forbidden, NotFound
from phalanx.api.kinds import JOB, KINDS, NAMESPACE, NODE, POD, SERVICE, Kind
from phalanx.api.meta import Key, PartialObjectMetadata
from phalanx.api.other_kinds import PodDisruptionBudget
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.api.scheme import DEVICE_KINDS, VOLUME_KINDS, kind_of, struct_of
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.api.workload_sources import COMPAT_NAMES, WORKLOAD_SOURCES, ServedSources
from phalanx.client.client import Client
from phalanx.client.informer import Informer
from phalanx.client.transports import Transport, Unreachable
from phalanx.client.workload_sources import discover_sources
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import Random
from phalanx.scheduler.queue.decision_log import (
    CompositePodGroupObserved,
    DisruptionBudgetObserved,
    JobObserved,
    NamespaceObserved,
    NodeObserved,
    Observation,
    PodGroupObserved,
    PodObserved,
    ServiceObserved,
)
from phalanx.scheduler.queue.scheduler_state import (
    observe_device_object,
    observe_volume_object,
)
from phalanx.sim.recording.anonymizer import Anonymizer
from phalanx.sim.recording.recording_format import (
    RECORDING_FORMAT,
    KindUnseen,
    RecordingEnded,
    RecordingLine,
    RecordingStarted,
    RecordingSynced,
    WatchInterrupted,
    encode_plain,
    to_plain,
    trim_object,
)
from phalanx.version import __version__

#: The structs of the kinds that a recording contains, in an order in which no object refers to a
#: later one.
_STRUCTS: tuple[type[Any], ...] = (
    Namespace,
    Service,
    Node,
    PodDisruptionBudget,
    *(struct_of(kind) for kind in (*DEVICE_KINDS, *VOLUME_KINDS)),
    CompositePodGroup,
    PodGroup,
    Job,
    Pod,
)
_GROUPS = (CompositePodGroup, PodGroup)
#: Selects no object: the list only shows whether it is allowed.
_NO_OBJECT = "metadata.name=phalanx-record"
#: Seconds between two looks at whether watches fail.
_WATCH_CHECK_SECONDS = 1.0
#: Seconds in which the server must answer at the end of a recording.
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RecorderOptions:
    """What is recorded, and how."""

    #: The only namespace of interest; "" for all.
    namespace: str = ""
    #: The namespace to record if the rights do not reach over all of them.
    fallback_namespace: str = ""
    anonymizer: Anonymizer | None = None
    configuration: dict[str, Any] | None = None


class RecordingRefused(Exception):
    """The rights, or the server, do not allow a recording; the message says why."""


class NamespaceTransport:
    """Wraps a transport: lists and watches of all namespaces become those of one."""

    def __init__(self, inner: Transport, namespace: str) -> None:
        self._inner = inner
        self._paths = {
            kind.url_path(): kind.url_path(namespace)
            for kind in (*KINDS, *(row.kind for row in WORKLOAD_SOURCES))
            if kind.namespaced
        }

    async def send(self, request: Request) -> Reply | StreamReply:
        """Send a request."""
        path = self._paths.get(request.path, request.path)
        return await self._inner.send(replace(request, path=path))

    async def close(self) -> None:
        """Close connections."""
        await self._inner.close()


class ClusterRecorder:
    """Records one cluster while `run` runs. `write` gets whole lines, in the order of time."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        *,
        write: Callable[[bytes], None],
        options: RecorderOptions,
    ) -> None:
        self._client, self._clock, self._random = client, clock, random
        self._write, self._options = write, options
        self._informers: dict[Kind, Informer[Any]] = {}
        self._hashes: dict[tuple[str, Key], int] = {}
        self._failing: set[Kind] = set()
        self._latest = 0.0
        #: The time of what is written before other tasks run.
        self._batch_time: float | None = None
        self._error: OSError | None = None
        #: How many lines were written, and what could not be recorded.
        self.lines = 0
        self.unseen: list[KindUnseen] = []
        self.namespace = options.namespace
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Record until cancelled. Raises RecordingRefused if pods cannot be read."""
        await self._choose_namespace()
        client = self._client
        if self.namespace:
            client = client.with_transport(lambda inner: NamespaceTransport(inner, self.namespace))
        self._write_line(
            RecordingStarted(
                self._now(),
                RECORDING_FORMAT,
                __version__,
                namespace=self.namespace,
                is_anonymized=self._options.anonymizer is not None,
                configuration=self._options.configuration,
            )
        )
        sources = await discover_sources(client, COMPAT_NAMES)
        structs = [struct async for struct in self._readable_structs(client, sources)]
        informers = Informers(client, self._random, sources)
        self._informers = {
            kind_of(struct): informers.of(struct, optional=True) for struct in structs
        }
        async with asyncio.TaskGroup() as group:
            group.create_task(informers.run())
            await informers.wait_for_sync()
            self._write_initial_objects()
            self.synced.set()
            group.create_task(self._report_failures())

    def finish(self) -> None:
        """Write that the recording ended in order."""
        self._write_line(RecordingEnded(self._now()))

    @property
    def outage(self) -> str:
        """Why the server cannot be followed at present; "" if it can."""
        failures = (informer.failure for informer in self._informers.values())
        found = (one for one in failures if not isinstance(one, NotFound | Forbidden | None))
        return str(next(found, ""))

    async def find_outage(self) -> str:
        """Ask the server once; return why it does not answer, "" if it does."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._client.list(
                    POD,
                    PartialObjectMetadata,
                    namespace=self.namespace,
                    field_selector=_NO_OBJECT,
                )
        except TimeoutError:
            return f"the server has not answered for {_ANSWER_SECONDS:.0f} s"
        except (ApiError, Unreachable) as error:
            return str(error)
        return ""

    # ---- rights --------------------------------------------------------------------------------

    async def _choose_namespace(self) -> None:
        """Record all namespaces if the rights suffice, else the one that the context names."""
        if self.namespace:
            return
        try:
            await self._client.list(POD, PartialObjectMetadata, field_selector=_NO_OBJECT)
        except Forbidden:
            if not self._options.fallback_namespace:
                raise
            self.namespace = self._options.fallback_namespace

    async def _readable_structs(
        self, client: Client, sources: ServedSources
    ) -> AsyncIterator[type[Any]]:
        """Yield the structs of the kinds that can be read; write which cannot."""
        for struct in _STRUCTS:
            kind = kind_of(struct)
            # The server may keep groups as another kind.
            kinds = [row.kind for row in sources.of(kind)] if struct in _GROUPS else [kind]
            reasons = [await self._find_obstacle(client, one) for one in kinds] or ["not served"]
            if not all(reasons):
                yield struct
                continue
            reason = reasons[0]
            if kind is POD:
                space = f" in namespace {self.namespace}" if self.namespace else ""
                raise RecordingRefused(f"pods{space} cannot be listed: {reason}")
            unseen = KindUnseen(self._now(), kind.plural, reason)
            self.unseen.append(unseen)
            self._write_line(unseen)

    async def _find_obstacle(self, client: Client, kind: Kind) -> str:
        """Return why the objects of a kind are not recorded; "" if they are."""
        if self._options.anonymizer is not None and kind in (*DEVICE_KINDS, *VOLUME_KINDS):
            return "left out of anonymized recordings"
        try:
            await client.list(kind, PartialObjectMetadata, field_selector=_NO_OBJECT)
        except Forbidden:
            return "forbidden"
        except NotFound:
            return "not served"
        except ApiError as error:
            return type(error).__name__
        return ""

    async def _report_failures(self) -> None:
        """Write when a watch fails; raise the error of a file that cannot be written."""
        while self._error is None:
            await asyncio.sleep(_WATCH_CHECK_SECONDS)
            for kind, informer in self._informers.items():
                failure = informer.failure
                if failure is None:
                    self._failing.discard(kind)
                elif kind not in self._failing and not isinstance(failure, NotFound | Forbidden):
                    self._failing.add(kind)
                    name = type(failure).__name__
                    self._write_line(WatchInterrupted(self._now(), kind.plural, name))
        raise self._error

    # ---- lines ---------------------------------------------------------------------------------

    def _write_initial_objects(self) -> None:
        nodes = self._informers.get(NODE)
        if self._options.anonymizer is not None and nodes is not None:
            self._options.anonymizer.add_nodes(key.name for key in nodes.cache)
        for kind, informer in self._informers.items():
            found = sorted(informer.cache.values(), key=_creation_order)
            for one in found:
                self._observe(kind, None, one)
            informer.cache.subscribe(partial(self._observe, kind))
        self._write_line(RecordingSynced(self._now()))

    def _observe(self, kind: Kind, old: Any, new: Any) -> None:
        """Write a line about an object unless it says the same as the last one."""
        changed = new if new is not None else old
        observed = _observation(kind, changed, self._now(), is_deleted=new is None)
        plain = to_plain(observed)
        identity = (str(plain["is"]), changed.metadata.key)
        digest = hash(encode_plain({**plain, "at": 0}))
        if new is None:
            self._hashes.pop(identity, None)
        elif self._hashes.get(identity) == digest:
            return
        else:
            self._hashes[identity] = digest
        self._write_plain(plain)

    def _write_line(self, line: RecordingLine) -> None:
        self._write_plain(to_plain(line))

    def _write_plain(self, plain: dict[str, Any]) -> None:
        anonymizer = self._options.anonymizer
        values = plain if anonymizer is None else anonymizer.anonymize(plain)
        if values is None or self._error is not None:
            return
        try:
            self._write(encode_plain(values))
        except OSError as error:
            # Informers contain the errors of their handlers; `run` raises it.
            self._error = error
        else:
            self.lines += 1

    def _now(self) -> float:
        """Return the time in microseconds; a clock that is set back does not turn time back.

        A back-off may end within the millisecond in which pods end: a replay must know which of
        both came first. What arrives together has one time: a scheduler observes it together too,
        before it attempts anything.
        """
        if self._batch_time is None:
            self._latest = max(self._latest, round(self._clock.now(), 6))
            self._batch_time = self._latest
            asyncio.get_running_loop().call_soon(self._end_batch)
        return self._batch_time

    def _end_batch(self) -> None:
        self._batch_time = None


def _creation_order(found: Any) -> tuple[str, Key]:
    return found.metadata.creation_timestamp, found.metadata.key


def _observation(kind: Kind, found: Any, at: float, *, is_deleted: bool) -> Observation:
    """Return the observation of an object, or that it was deleted."""
    key, name, new = found.metadata.key, found.metadata.name, None if is_deleted else found
    if kind in DEVICE_KINDS:
        return observe_device_object(trim_object(found), at, is_deleted=is_deleted)
    if kind in VOLUME_KINDS:
        trimmed = trim_object(found)
        return observe_volume_object(trimmed, None if is_deleted else trimmed, at)
    if kind is NAMESPACE:
        return NamespaceObserved(at, name, new.metadata.labels if new else None)
    if kind is SERVICE:
        return ServiceObserved(at, key, new.spec.selector if new else None)
    if kind is JOB:
        return JobObserved(at, key, job_run_time(new) if new else None)
    trimmed = trim_object(new) if new else None
    if kind is NODE:
        return NodeObserved(at, name, trimmed)
    record: Any = _RECORDS[kind_of(type(found))]
    observed: Observation = record(at, key, trimmed)
    return observed


_RECORDS: dict[Kind, type[Any]] = {
    kind_of(PodDisruptionBudget): DisruptionBudgetObserved,
    kind_of(CompositePodGroup): CompositePodGroupObserved,
    kind_of(PodGroup): PodGroupObserved,
    POD: PodObserved,
}


def describe_scope(recorder: ClusterRecorder) -> Iterator[str]:
    """Say what is not recorded, for the user."""
    if recorder.namespace:
        yield f"only namespace {recorder.namespace} is recorded"
    by_reason: dict[str, list[str]] = {}
    for one in recorder.unseen:
        by_reason.setdefault(one.reason, []).append(one.resource)
    for reason, resources in by_reason.items():
        yield f"not recorded ({reason}): {', '.join(resources)}"
