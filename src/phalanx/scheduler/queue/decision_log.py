"""Record: everything that reached a scheduler's cache and queue, and what it decided, as lines.

    begin                                  what the scheduler is; a story of its own starts here
    namespace service node composite       something was seen, or (without a value) is gone
    group budget pod
    assumed promised entry                 after a beginning in the middle: how things stood
    take                                   an entity was taken from the queue
    answer                                 what an exact solver said about it, if it was asked
    searched                               a search that it did not wait for came to an end
    decide                                 what was decided about it
    undo                                   placements that could not be bound
    spare                                  pods that could not be evicted

`desk.py` makes these values as it works, `replay.py` feeds them to another desk. Each line is a
JSON object that ends with a seal: a digest of itself and of all lines since the beginning, so that
a line that was changed, lost or moved is noticed. Does not read or write files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import Struct

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.scheduler.decision import Binding, Decision
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.queued_entity import QueuedEntityCheckpoint
from phalanx.scheduler.search.solver import SolverAnswer

#: Raised when lines come to mean something else.
FORMAT = 1


class TimedRecord(Struct, frozen=True, tag_field="is"):
    """Something that happened at a moment."""

    at: float


class LogStarted(TimedRecord, frozen=True, tag="begin"):
    """What the scheduler is: the version of its code, its names, its configuration if any."""

    format: int
    version: str
    schedulers: tuple[str, ...]
    configuration: dict[str, Any] | None = None
    #: How many turns its queue had given away.
    sequence: int = 0
    #: Whether anybody is evicted for groups; if not, for those of no profile.
    groups_preempt: bool = True


class NamespaceObserved(TimedRecord, frozen=True, tag="namespace"):
    """A namespace's labels."""

    name: str
    labels: dict[str, str] | None


class ServiceObserved(TimedRecord, frozen=True, tag="service"):
    """Whom a Service selects."""

    key: Key
    selector: dict[str, str] | None


class NodeObserved(TimedRecord, frozen=True, tag="node"):
    """A node."""

    name: str
    node: Node | None


class PodGroupObserved(TimedRecord, frozen=True, tag="group"):
    """A PodGroup."""

    key: Key
    group: PodGroup | None


class CompositePodGroupObserved(TimedRecord, frozen=True, tag="composite"):
    """A CompositePodGroup."""

    key: Key
    group: CompositePodGroup | None


class DisruptionBudgetObserved(TimedRecord, frozen=True, tag="budget"):
    """A PodDisruptionBudget."""

    key: Key
    budget: PodDisruptionBudget | None


class PodObserved(TimedRecord, frozen=True, tag="pod"):
    """A pod."""

    key: Key
    pod: Pod | None


class PodsAssumed(TimedRecord, frozen=True, tag="assumed"):
    """Pods that were placed before the beginning and whose binding had not been seen."""

    bindings: tuple[Binding, ...]


class PodsNominated(TimedRecord, frozen=True, tag="promised"):
    """What pods had been promised ("": nothing any more), and who was to be evicted, by name and
    uid, before the beginning, without that it had been seen.
    """

    promises: tuple[Binding, ...]
    doomed: tuple[tuple[Key, str], ...]


class EntityRestored(TimedRecord, frozen=True, tag="entry"):
    """How an entity stood in the queue at the beginning."""

    memory: QueuedEntityCheckpoint


class MemberVersion(NamedTuple):
    """One pod of an entity, in the version that was seen."""

    name: str
    uid: str
    version: str
    attempts: int
    timestamp: float


class EntityVersion(Struct, frozen=True):
    """An entity: the pod alone, or the group in the version that was seen, and its pods."""

    key: Key
    group: str | None
    scheduler: str
    attempts: int
    timestamp: float
    members: tuple[MemberVersion, ...]
    #: The names and uids of the live members that are not to be placed.
    others: tuple[tuple[str, str], ...]
    #: The names and versions of the groups that hang from it.
    below: tuple[tuple[str, str], ...] = ()


class EntityPopped(TimedRecord, frozen=True, tag="take"):
    """An entity was taken from the queue, and decided about from what had been seen by then."""

    entity: EntityVersion


class SolverAnswered(TimedRecord, frozen=True, tag="answer"):
    """What an exact solver said when it was asked about the entity that was taken last."""

    answer: SolverAnswer


class SearchFinished(TimedRecord, frozen=True, tag="searched"):
    """A search came to an end for which there was an answer only later."""


class DecisionMade(TimedRecord, frozen=True, tag="decide"):
    """The answer: `decision` is a map of one entry, the name of its class and its fields."""

    key: Key
    decision: dict[str, Any]


class BindingsRolledBack(TimedRecord, frozen=True, tag="undo"):
    """Placements that could not be bound."""

    bindings: tuple[Binding, ...]


class EvictionsCancelled(TimedRecord, frozen=True, tag="spare"):
    """Pods that were to be evicted and were not, by name and uid."""

    pods: tuple[tuple[Key, str], ...]


Observation = (
    NamespaceObserved
    | ServiceObserved
    | NodeObserved
    | CompositePodGroupObserved
    | PodGroupObserved
    | DisruptionBudgetObserved
    | PodObserved
)
DecisionLogRecord = (
    LogStarted
    | Observation
    | PodsAssumed
    | PodsNominated
    | EntityRestored
    | EntityPopped
    | SolverAnswered
    | SearchFinished
    | DecisionMade
    | BindingsRolledBack
    | EvictionsCancelled
)

_DECISIONS: dict[str, type[Decision]] = {one.__name__: one for one in get_args(Decision)}
_START_PREFIX, _DIGEST_FIELD = b'{"is":"begin"', b',"seal":"'
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DecisionLogRecord).decode


def entity_version(entity: Entity) -> EntityVersion:
    """An entity, in the few words that tell it from any other."""
    seats = [
        MemberVersion(meta.name, meta.uid, meta.resource_version, member.attempts, member.timestamp)
        for member in entity.members
        for meta in (member.pod.metadata,)
    ]
    version = entity.group.metadata.resource_version if entity.group else None
    others = tuple((pod.metadata.name, pod.metadata.uid) for pod in entity.other_members)
    return EntityVersion(
        entity.key, version, entity.scheduler_name, entity.attempts, entity.timestamp, tuple(seats),
        others, tuple(_group_versions(entity)),
    )  # fmt: skip


def _group_versions(entity: Entity) -> Iterator[tuple[str, str]]:
    for part in entity.children:
        for one in part.groups:
            if one.group is not None:
                yield one.key.name, one.group.metadata.resource_version


def encode_decision(decision: Decision) -> dict[str, Any]:
    """A decision as plain values, always in the same order."""
    return {type(decision).__name__: msgspec.to_builtins(decision, order="deterministic")}


def decode_decision(encoded: dict[str, Any]) -> Decision:
    """What was spoken. Raises ValueError, as msgspec does, if it makes no sense."""
    for name, fields in encoded.items():
        if name in _DECISIONS:
            decision: Decision = msgspec.convert(fields, _DECISIONS[name])
            return decision
    raise ValueError(f"there is no decision in {', '.join(encoded) or 'nothing'}")


class RecordEncoder:
    """Writes records as lines, each sealed with those before it."""

    def __init__(self) -> None:
        self._digest = b""

    def encode(self, records: Iterable[DecisionLogRecord]) -> Iterator[bytes]:
        """The line of each record."""
        for record in records:
            if isinstance(record, LogStarted):
                self._digest = b""
            body = _encode(record)
            self._digest = _chain_digest(self._digest, body)
            yield body[:-1] + _DIGEST_FIELD + self._digest + b'"}\n'


class RecordFault(NamedTuple):
    """A line that is not as it was written."""

    line: int
    why: str


def read_records(lines: Iterable[bytes]) -> Iterator[tuple[int, DecisionLogRecord] | RecordFault]:
    """What lines say, each with its number, and which of them are not as they were written.

    A last line without an end was being written when the writer died: it is left out.
    """
    seal = b""
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return
        body, _, told = line.rstrip(b'"}\n').rpartition(_DIGEST_FIELD)
        body += b"}"
        if body.startswith(_START_PREFIX):
            seal = b""
        try:
            found = _decode(body)
        except msgspec.MsgspecError as error:
            yield RecordFault(number, f"makes no sense: {error}")
        else:
            if told != _chain_digest(seal, body):
                yield RecordFault(number, "is not what was written, or does not belong here")
            yield number, found
        # The next is held against what stands here, so that each change is told once.
        seal = told


def _chain_digest(previous: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(previous + body, digest_size=8).hexdigest().encode()
