"""Volumes of the members of an entity: what they require, and what a placement gives them.

`resolve_volumes` runs once at the beginning of a cycle and puts the demand of each member into its
shape. `assign_volumes` turns the volumes of placed members into the writes of the decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

from msgspec.structs import replace as but

from phalanx.api.meta import Key
from phalanx.api.storage import volume_keys_of
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import VolumeAssignment
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.plugins.volume_assignments import VolumeAssignments
from phalanx.scheduler.plugins.volume_binding import VOLUME_BINDING
from phalanx.scheduler.plugins.volume_filters import NODE_VOLUME_LIMITS, VOLUME_RESTRICTIONS
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.volumes.demand import NO_VOLUMES, AssignedVolume, VolumeDemand
from phalanx.scheduler.volumes.state import VolumeState, VolumeUser

_HAS_VOLUMES = attrgetter("shape.has_volumes")


def resolve_volumes(entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy) -> Entity:
    """Return the entity with the demand of each member's volumes in its shape."""
    if not any(map(_HAS_VOLUMES, entity.members)):
        return entity
    if any(one.shape.volumes for one in entity.members):
        return entity
    members = filter(_HAS_VOLUMES, entity.members)
    uses = Counter(key for member in members for key in volume_keys_of(member.pod))
    shared_keys = {key for key, count in uses.items() if count > 1}
    return _VolumeResolver(snapshot.volumes, policy, shared_keys).resolve(entity)


class _VolumeResolver:
    """Puts demands into shapes; members with equal shapes and demands share one shape."""

    def __init__(self, state: VolumeState, policy: SchedulerPolicy, shared_keys: set[Key]) -> None:
        self._state, self._filters, self._shared_keys = state, policy.filters, shared_keys
        self._shapes: dict[tuple[int, VolumeDemand], PodShape] = {}

    def resolve(self, entity: Entity) -> Entity:
        """Resolve the volumes of all members of a tree."""
        children = tuple(map(self.resolve, entity.children))
        if children:
            members = tuple(member for child in children for member in child.members)
            return replace(entity, members=members, children=children)
        return replace(entity, members=tuple(map(self._with_demand, entity.members)))

    def _with_demand(self, member: Member) -> Member:
        shape = member.shape
        demand = self._demand_of(member) if shape.has_volumes else NO_VOLUMES
        if not demand:
            return member
        # By identity: the shapes of the members live as long as the resolver.
        found = self._shapes.get((id(shape), demand))
        if found is None:
            found = self._shapes[id(shape), demand] = but(shape, volumes=demand)
        return Member(member.pod, found, member.attempts, member.timestamp)

    def _demand_of(self, member: Member) -> VolumeDemand:
        """Return the demand of a member, without what disabled plugins would check."""
        demand = self._state.demand_of(member.pod, self._shared_keys)
        if VOLUME_BINDING.name not in self._filters:
            demand = demand._replace(problem="", affinities=(), lacks_volume=False, unbound=())
        if VOLUME_RESTRICTIONS.name not in self._filters:
            demand = demand._replace(exclusive=())
        if NODE_VOLUME_LIMITS.name not in self._filters:
            demand = demand._replace(attached=())
        return demand


def assign_volumes(
    placed: Iterable[tuple[Member, tuple[AssignedVolume, ...]]], state: VolumeState
) -> tuple[VolumeAssignment, ...]:
    """Return the claims that are bound with placed members, each once."""
    found: dict[Key, VolumeAssignment] = {}
    for member, assigned in placed:
        for claim, volume, node in assigned:
            uid = state.claims[claim].metadata.uid
            found.setdefault(
                claim, VolumeAssignment(claim, uid, member.pod.metadata.uid, node, volume)
            )
    return tuple(found.values())


def hold_nominated_volumes(snapshot: Snapshot, nominated: Iterable[AssignedPod]) -> None:
    """Take volumes for nominated pods on their nominated nodes. The snapshot must be a fork."""
    state, assignments = snapshot.volumes, VolumeAssignments(snapshot)
    held: list[VolumeUser] = []
    for pod in nominated:
        row = snapshot.index.get(pod.node)
        if row is not None and pod.volume_keys:
            volumes = assignments.hold(pod.volume_keys, row)
            held.append(VolumeUser(pod.key, pod.node, (), volumes))
    if any(user.volumes for user in held):
        snapshot.volumes = state.fork(added=held)
