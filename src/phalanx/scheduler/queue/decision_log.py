"""The records of a decision log: everything that reaches a scheduler, and every decision.

    begin                                     the scheduler: version, profiles, configuration
    namespace service node composite group    an object was observed, or (without a value) deleted
    budget slice deviceclass devicetaintrule
    claim storageclass csidriver csinode capacity attachment volume volumeclaim
    job pod
    assumed promised entry                    the state at a beginning that is not the start
    reserve                                   the reservations changed
    take                                      an entity was popped from the queue
    answer                                    the answer of the exact solver, if it was asked
    searched                                  a search ended for which the cycle did not wait
    decide                                    the decision
    undo                                      bindings that failed
    spare                                     evictions that failed

`scheduler_state.py` creates the records, `controllers/scheduling/decision_log.py` writes them, and
`replay.py` applies them to another state. Each line is a JSON object that ends with a digest of
itself and of all lines since the beginning, so that a changed, lost or moved line is detected.
Nothing here reads or writes files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import Struct

from phalanx.api.batch import JobRunTime
from phalanx.api.core import Node, Pod
from phalanx.api.dynamic_resources import DeviceClass, DeviceTaintRule, ResourceSlice
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, POD_GROUP_KIND, Key, Ref
from phalanx.api.other_kinds import DeviceClaim, PodDisruptionBudget
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from phalanx.scheduler.decision import Binding, ClaimReservation, Decision, VolumeAssignment
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.queued_entity import QueuedEntityCheckpoint
from phalanx.scheduler.reservation.reservation import Reservation
from phalanx.scheduler.search.solver import SolverAnswer

#: The version of the format; it changes when records change their meaning.
FORMAT = 1


class TimedRecord(Struct, frozen=True, tag_field="is"):
    """An event with its time, in seconds since the epoch."""

    at: float


class LogStarted(TimedRecord, frozen=True, tag="begin"):
    """The beginning of a log: the scheduler and its configuration."""

    format: int
    version: str
    schedulers: tuple[str, ...]
    configuration: dict[str, Any] | None = None
    #: The next sequence number of its queue.
    sequence: int = 0
    #: Whether any profile preempts for groups.
    groups_preempt: bool = True


class NamespaceObserved(TimedRecord, frozen=True, tag="namespace"):
    """The labels of a namespace."""

    name: str
    labels: dict[str, str] | None


class ServiceObserved(TimedRecord, frozen=True, tag="service"):
    """The selector of a Service."""

    key: Key
    selector: dict[str, str] | None


class NodeObserved(TimedRecord, frozen=True, tag="node"):
    """A Node."""

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


class ResourceSliceObserved(TimedRecord, frozen=True, tag="slice"):
    """A ResourceSlice."""

    name: str
    slice: ResourceSlice | None


class DeviceClassObserved(TimedRecord, frozen=True, tag="deviceclass"):
    """A DeviceClass."""

    name: str
    device_class: DeviceClass | None


class DeviceTaintRuleObserved(TimedRecord, frozen=True, tag="devicetaintrule"):
    """A DeviceTaintRule."""

    name: str
    rule: DeviceTaintRule | None


class ResourceClaimObserved(TimedRecord, frozen=True, tag="claim"):
    """A ResourceClaim."""

    key: Key
    claim: DeviceClaim | None


class StorageClassObserved(TimedRecord, frozen=True, tag="storageclass"):
    """A StorageClass."""

    key: Key
    new: StorageClass | None


class CSIDriverObserved(TimedRecord, frozen=True, tag="csidriver"):
    """A CSIDriver."""

    key: Key
    new: CSIDriver | None


class CSINodeObserved(TimedRecord, frozen=True, tag="csinode"):
    """A CSINode."""

    key: Key
    new: CSINode | None


class CSIStorageCapacityObserved(TimedRecord, frozen=True, tag="capacity"):
    """A CSIStorageCapacity."""

    key: Key
    new: CSIStorageCapacity | None


class VolumeAttachmentObserved(TimedRecord, frozen=True, tag="attachment"):
    """A VolumeAttachment."""

    key: Key
    new: VolumeAttachment | None


class PersistentVolumeObserved(TimedRecord, frozen=True, tag="volume"):
    """A PersistentVolume."""

    key: Key
    new: PersistentVolume | None


class PersistentVolumeClaimObserved(TimedRecord, frozen=True, tag="volumeclaim"):
    """A PersistentVolumeClaim."""

    key: Key
    new: PersistentVolumeClaim | None


class PodObserved(TimedRecord, frozen=True, tag="pod"):
    """A Pod."""

    key: Key
    pod: Pod | None


class JobObserved(TimedRecord, frozen=True, tag="job"):
    """What a Job says about the run time of its pods."""

    key: Key
    job: JobRunTime | None


class ReservationsPlanned(TimedRecord, frozen=True, tag="reserve"):
    """The reservations, after they were planned again and changed.

    `turns` says which entities had a reservation that came no nearer, and when it ended.
    """

    reservations: tuple[Reservation, ...]
    turns: tuple[tuple[Ref, float], ...] = ()


class PodsAssumed(TimedRecord, frozen=True, tag="assumed"):
    """Pods that were placed before the beginning and whose binding was not observed yet."""

    bindings: tuple[Binding, ...]
    claims: tuple[ClaimReservation, ...] = ()
    volumes: tuple[VolumeAssignment, ...] = ()


class PodsNominated(
    TimedRecord,
    frozen=True,
    tag="promised",
    rename={"nominations": "promises", "evicting": "doomed"},
):
    """Nominations ("" ends one) and pods to be evicted, by key and uid, at the beginning.

    Only those that the API did not show yet.
    """

    nominations: tuple[Binding, ...]
    evicting: tuple[tuple[Key, str], ...]


class EntityRestored(TimedRecord, frozen=True, tag="entry", rename={"checkpoint": "memory"}):
    """The state of an entity in the queue at the beginning."""

    checkpoint: QueuedEntityCheckpoint


class MemberVersion(NamedTuple):
    """One pending pod of an entity, with its resourceVersion and attempts."""

    name: str
    uid: str
    version: str
    attempts: int
    timestamp: float


class EntityVersion(Struct, frozen=True):
    """The identity of an entity in a cycle: resourceVersions of its group and its pods."""

    key: Key
    group: str | None
    scheduler: str
    attempts: int
    timestamp: float
    members: tuple[MemberVersion, ...]
    #: The names and uids of live members that are not pending.
    others: tuple[tuple[str, str], ...]
    #: The names and resourceVersions of the groups below it.
    below: tuple[tuple[str, str], ...] = ()


class EntityPopped(TimedRecord, frozen=True, tag="take"):
    """An entity was popped; its cycle uses everything that was observed until then."""

    entity: EntityVersion


class SolverAnswered(TimedRecord, frozen=True, tag="answer"):
    """The answer of the exact solver in the cycle of the entity that was popped last."""

    answer: SolverAnswer


class SearchFinished(TimedRecord, frozen=True, tag="searched"):
    """An exact search ended for which the cycle did not wait."""


class DecisionMade(TimedRecord, frozen=True, tag="decide"):
    """The decision of a cycle: a map of one entry, the name of its class and its fields."""

    key: Key
    decision: dict[str, Any]


class BindingsRolledBack(TimedRecord, frozen=True, tag="undo"):
    """Bindings that failed."""

    bindings: tuple[Binding, ...]


class EvictionsCancelled(TimedRecord, frozen=True, tag="spare"):
    """Evictions that failed, by key and uid of the pod."""

    pods: tuple[tuple[Key, str], ...]


VolumeObjectObserved = (
    StorageClassObserved
    | CSIDriverObserved
    | CSINodeObserved
    | CSIStorageCapacityObserved
    | VolumeAttachmentObserved
    | PersistentVolumeObserved
    | PersistentVolumeClaimObserved
)
#: The record of each kind of volume object.
VOLUME_RECORDS: dict[type[Any], type[VolumeObjectObserved]] = {
    StorageClass: StorageClassObserved,
    CSIDriver: CSIDriverObserved,
    CSINode: CSINodeObserved,
    CSIStorageCapacity: CSIStorageCapacityObserved,
    VolumeAttachment: VolumeAttachmentObserved,
    PersistentVolume: PersistentVolumeObserved,
    PersistentVolumeClaim: PersistentVolumeClaimObserved,
}
Observation = (
    NamespaceObserved
    | ServiceObserved
    | NodeObserved
    | CompositePodGroupObserved
    | PodGroupObserved
    | DisruptionBudgetObserved
    | ResourceSliceObserved
    | DeviceClassObserved
    | DeviceTaintRuleObserved
    | ResourceClaimObserved
    | VolumeObjectObserved
    | JobObserved
    | PodObserved
)
DecisionLogRecord = (
    LogStarted
    | Observation
    | PodsAssumed
    | PodsNominated
    | EntityRestored
    | ReservationsPlanned
    | EntityPopped
    | SolverAnswered
    | SearchFinished
    | DecisionMade
    | BindingsRolledBack
    | EvictionsCancelled
)

_DECISIONS: dict[str, type[Decision]] = {one.__name__: one for one in get_args(Decision)}
#: Fields of a decision that the log spells otherwise.
_FIELD_NAMES = {"nominated": "promised", "relaxation_delay": "relaxes"}
#: Fields that the log leaves out at their defaults, as logs of the first release do.
_OMITTED_DEFAULTS: dict[str, Any] = {
    "leaving_delay": None,
    "held_by": "",
    "holders": (),
    "starts_soon": False,
    "broken_groups": (),
    "optimal": True,
    "volumes": (),
}
_ENCODED_NAMES = {encoded: name for name, encoded in _FIELD_NAMES.items()}
_START_PREFIX, _DIGEST_FIELD = b'{"is":"begin"', b',"seal":"'
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DecisionLogRecord).decode


def entity_version(entity: Entity) -> EntityVersion:
    """Return the identity of an entity in this cycle."""
    members = tuple(
        MemberVersion(
            meta.name,
            meta.uid,
            meta.resource_version,
            attempts=member.attempts,
            timestamp=member.timestamp,
        )
        for member in entity.members
        for meta in (member.pod.metadata,)
    )
    version = entity.group.metadata.resource_version if entity.group else None
    others = tuple((pod.metadata.name, pod.metadata.uid) for pod in entity.other_members)
    below = tuple(
        (part.key.name, part.group.metadata.resource_version)
        for child in entity.children
        for part in child.groups
        if part.group is not None
    )
    return EntityVersion(
        entity.key,
        version,
        scheduler=entity.scheduler_name,
        attempts=entity.attempts,
        timestamp=entity.timestamp,
        members=members,
        others=others,
        below=below,
    )


def encode_decision(decision: Decision) -> dict[str, Any]:
    """Encode a decision as plain values, always in the same order."""
    fields = msgspec.to_builtins(decision, order="deterministic")
    return {type(decision).__name__: _encode_fields(fields)}


def decode_decision(encoded: dict[str, Any]) -> Decision:
    """Decode a decision. Raises ValueError (or its subclass of msgspec) if it is invalid."""
    for name, fields in encoded.items():
        if name in _DECISIONS:
            decision: Decision = msgspec.convert(_decode_fields(fields), _DECISIONS[name])
            return decision
    raise ValueError(f"unknown decision {', '.join(encoded) or '{}'}")


def _encode_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Spell the fields of a decision as FORMAT 1 does."""
    encoded = {
        _FIELD_NAMES.get(name, name): value
        for name, value in fields.items()
        if name not in _OMITTED_DEFAULTS or value != _OMITTED_DEFAULTS[name]
    }
    if waiting := fields.get("waiting"):
        encoded["waiting"] = _encode_fields(waiting)
    if parts := fields.get("parts"):
        encoded["parts"] = [
            [*_encode_group(ref), waiting and _encode_fields(waiting)] for ref, waiting in parts
        ]
    if victims := fields.get("victims"):
        encoded["victims"] = [
            [pod, uid, node, *(_encode_group(group) if group else (None, False))]
            for pod, uid, node, group in victims
        ]
    return encoded


def _encode_group(ref: Sequence[str]) -> tuple[list[str], bool]:
    kind, *key = ref
    return key, kind == COMPOSITE_POD_GROUP_KIND


def _decode_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Read the fields of a decision as FORMAT 1 spells them."""
    decoded = {_ENCODED_NAMES.get(name, name): value for name, value in fields.items()}
    if waiting := fields.get("waiting"):
        decoded["waiting"] = _decode_fields(waiting)
    if parts := fields.get("parts"):
        decoded["parts"] = [
            [_decode_group(key, is_composite), waiting and _decode_fields(waiting)]
            for key, is_composite, waiting in parts
        ]
    if victims := fields.get("victims"):
        decoded["victims"] = [
            [pod, uid, node, _decode_group(key, is_composite) if key else None]
            for pod, uid, node, key, is_composite in victims
        ]
    return decoded


def _decode_group(key: Sequence[str], is_composite: bool) -> list[str]:
    return [COMPOSITE_POD_GROUP_KIND if is_composite else POD_GROUP_KIND, *key]


class RecordEncoder:
    """Encodes records as lines, each with the digest of all lines since the beginning."""

    def __init__(self) -> None:
        self._digest = b""

    def encode(self, records: Iterable[DecisionLogRecord]) -> Iterator[bytes]:
        """Yield the line of each record."""
        for record in records:
            if isinstance(record, LogStarted):
                self._digest = b""
            body = _encode(record)
            self._digest = _chain_digest(self._digest, body)
            yield body[:-1] + _DIGEST_FIELD + self._digest + b'"}\n'


class RecordFault(NamedTuple):
    """A line that is damaged, or cannot be replayed."""

    line: int
    reason: str


def read_records(lines: Iterable[bytes]) -> Iterator[tuple[int, DecisionLogRecord] | RecordFault]:
    """Decode lines: records with their line number, and faults.

    A last line without a newline is ignored: the writer was stopped while writing it.
    """
    digest = b""
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return
        body, _, recorded = line.rstrip(b'"}\n').rpartition(_DIGEST_FIELD)
        body += b"}"
        if body.startswith(_START_PREFIX):
            digest = b""
        try:
            found = _decode(body)
        except msgspec.MsgspecError as error:
            yield RecordFault(number, f"cannot be decoded: {error}")
        else:
            if recorded != _chain_digest(digest, body):
                yield RecordFault(number, "was changed, or a line before it is missing or moved")
            yield number, found
        # The next line is checked against the recorded digest, so each change is reported once.
        digest = recorded


def _chain_digest(previous: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(previous + body, digest_size=8).hexdigest().encode()
