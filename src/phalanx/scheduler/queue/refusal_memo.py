"""RefusalMemo: one decision for all entities that differ in names only, about one snapshot.

Gangs that differ in nothing but names get the same decision while nothing changes: the refusal of
the first is repeated for the others, with the names of their own pods.

    gangs a, b and c of 8 equal pods are created     one cycle for a; b and c get its refusal
    a pod ends                                       the memo is empty again

Only refusals of equal members are remembered that name no other object of the entity. Each is the
one that a cycle would give, so that a replay that starts later makes the same decisions.

`RepeatedRefusals` finds the refusals of waiting entities that are certain without an attempt:

    gangs a, b, ..., z of one GPU wait; a GPU becomes free, which a reservation keeps
    a is attempted          refused: it would end too late
    b, ..., y               declare run times that are too long as well: refused without an attempt
    z                       ends in time: it is attempted

It is for simulations, which do not report each refusal. The order of attempts and all decisions are
those of attempts one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import NamedTuple

from phalanx.api.meta import Ref
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Decision, UnplacedPod, Waiting
from phalanx.scheduler.entity import Entity, validate_entity
from phalanx.scheduler.placement.group_placement import sort_members
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.queue.queued_entity import QueuedEntity
from phalanx.scheduler.queue.wake_condition import WakeCondition, is_final, may_be_kept_away
from phalanx.scheduler.reservation.tracker import ReservationTracker

#: The refusals that are remembered for one version of the cluster.
_MAX_REFUSALS = 1024


class KnownRefusal(NamedTuple):
    """A refusal that is certain without a cycle: what ends it, and how many members lack a node."""

    condition: WakeCondition
    lacking: int


class RefusalMemo:
    """The refusals of the present version of the cluster, by what a cycle reads of the entity.

    A refusal that the passing of time may end is not remembered.
    """

    def __init__(self) -> None:
        self.version: Hashable = None
        self._refusals: dict[Hashable, Waiting] = {}
        #: What ends each refusal, without and with a declared end of the entity.
        self._conditions: dict[Hashable, KnownRefusal] = {}
        #: The last entity whose refusal was found or stored, and under which key.
        self._last: tuple[Entity, tuple[Hashable, tuple[Ref, ...]]] | None = None

    def find(
        self,
        entity: Entity,
        snapshot: Snapshot,
        policy: SchedulerPolicy,
        *,
        version: Hashable,
        holders: tuple[Ref, ...] = (),
    ) -> Waiting | None:
        """Return the refusal of an equal entity as one of this entity; None if there is none.

        `version` is equal as long as nothing that a cycle reads has changed. `holders` are the
        entities whose reservations keep room from this one.
        """
        if version != self.version:
            self.version = version
            self._refusals.clear()
            self._conditions.clear()
        signature = _signature_of(entity, snapshot, policy) if self._refusals else None
        found = self._refusals.get((signature, holders)) if signature is not None else None
        if found is None:
            return None
        self._last = entity, (signature, holders)
        return _rename_refusal(entity, found)

    def store(
        self,
        entity: Entity,
        decision: Decision,
        snapshot: Snapshot,
        *,
        policy: SchedulerPolicy,
        holders: tuple[Ref, ...] = (),
    ) -> None:
        """Remember a refusal by the version of the last `find`."""
        if not is_final(decision) or decision.retry_delay is not None:
            return
        if len(self._refusals) < _MAX_REFUSALS:
            signature = _signature_of(entity, snapshot, policy)
            if signature is not None:
                self._last = entity, (signature, holders)
                self._refusals.setdefault((signature, holders), decision)

    def note_condition(
        self, entity: Entity, condition: WakeCondition, lacking: int, *, has_limit: bool
    ) -> Hashable | None:
        """Remember what ends the refusal of an entity, if equal entities share it.

        `has_limit`: whether the entity declares when it ends. Returns the signature of the entity;
        None if its refusal is not remembered.
        """
        if self._last is None or self._last[0] is not entity or condition.ref is not None:
            return None
        key = self._last[1]
        self._conditions[key, has_limit] = KnownRefusal(condition, lacking)
        return key[0]

    def find_condition(
        self, signature: Hashable, holders: tuple[Ref, ...], *, has_limit: bool
    ) -> KnownRefusal | None:
        """Return what ends the refusal that an equal entity has got; None if that is unknown."""
        return self._conditions.get(((signature, holders), has_limit))


def _signature_of(entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy) -> Hashable | None:
    """Return what a cycle reads of an entity; None if equal entities may get other decisions."""
    group, shape = entity.group, entity.members[0].shape
    is_plain = (
        not entity.children
        and not shape.has_claims
        and not shape.has_volumes
        and not entity.other_members
        and policy.has_default_filters
        and (group is None or TOPOLOGY_ANNOTATION not in group.metadata.annotations)
        and all(member.shape == shape for member in entity.members)
        and not any(member.pod.metadata.key in snapshot.nominations for member in entity.members)
        and not may_be_kept_away(entity, snapshot.pod_index)
        and validate_entity(entity) is None
    )
    if not is_plain:
        return None
    return (
        entity.scheduler_name,
        group is None,
        entity.priority,
        entity.may_preempt,
        entity.quorum,
        entity.topology_key,
        len(entity.members),
        shape,
    )


def _rename_refusal(entity: Entity, found: Waiting) -> Waiting:
    """Return the refusal of an equal entity with the names of this one."""
    members = (member.pod.metadata for member in sort_members(entity.members))
    pods = tuple(
        UnplacedPod(meta.key, meta.uid, refusal)
        for meta, (_, _, refusal) in zip(members, found.pods, strict=True)
    )
    return replace(found, group=entity.group_key, pods=pods)


#: Returns the refusal that an attempt of a waiting entity would bring; None if it is not certain.
FindRefusal = Callable[[QueuedEntity], KnownRefusal | None]


class RepeatedRefusals:
    """Finds refusals for the queue. `version` is that of the scheduler's state."""

    def __init__(
        self,
        cache: SchedulerCache,
        reservations: ReservationTracker,
        memo: RefusalMemo,
        *,
        version: Callable[[], Hashable],
    ) -> None:
        self._cache, self._reservations, self._memo = cache, reservations, memo
        self._version = version

    def at(self, now: float) -> FindRefusal | None:
        """Return how to find refusals until something changes; None if the memo has none."""
        tracker, memo, snapshot = self._reservations, self._memo, self._cache.snapshot()
        if tracker.is_due(now) or memo.version != self._version():
            return None
        nominations, has_terms = snapshot.nominations, bool(snapshot.pod_index.existing_terms)
        find_holders = tracker.holder_finder(snapshot, now)

        def find(entry: QueuedEntity) -> KnownRefusal | None:
            refused = entry.refused
            if refused is None or has_terms:
                return None
            entity, signature = refused
            if nominations and not entity.pod_keys.isdisjoint(nominations):
                return None
            held = find_holders(entity)
            if held is None:
                return None
            return memo.find_condition(signature, held.refs, has_limit=held.has_limit)

        return find
