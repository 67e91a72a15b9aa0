"""RefusalMemo: one decision for all entities that differ in names only, about one snapshot.

Gangs that differ in nothing but names get the same decision while nothing changes: the refusal of
the first is repeated for the others, with the names of their own pods.

    gangs a, b and c of 8 equal pods are created     one cycle for a; b and c get its refusal
    a pod ends                                       the memo is empty again

Only refusals of equal members are remembered that name no other object of the entity. Each is the
one that a cycle would give, so that a replay that starts later makes the same decisions.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from phalanx.api.meta import Ref
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import Decision, UnplacedPod, Waiting
from phalanx.scheduler.entity import Entity, validate_entity
from phalanx.scheduler.placement.group_placement import sort_members
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.queue.wake_condition import is_final, may_be_kept_away

#: The refusals that are remembered for one version of the cluster.
_MAX_REFUSALS = 1024


class RefusalMemo:
    """The refusals of the present version of the cluster, by what a cycle reads of the entity.

    A refusal that the passing of time may end is not remembered.
    """

    def __init__(self) -> None:
        self._version: Hashable = None
        self._refusals: dict[Hashable, Waiting] = {}

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
        if version != self._version:
            self._version = version
            self._refusals.clear()
        signature = _signature_of(entity, snapshot, policy) if self._refusals else None
        found = self._refusals.get((signature, holders)) if signature is not None else None
        return _rename_refusal(entity, found) if found is not None else None

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
                self._refusals.setdefault((signature, holders), decision)


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
