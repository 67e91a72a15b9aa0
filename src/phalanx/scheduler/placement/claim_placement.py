"""The claims of members, for devices and for volumes: what they require, and what they get.

`resolve_claims` and `resolve_volumes` run once at the beginning of a cycle and put the demand of
each member into its shape. `reserve_claims` and `assign_volumes` turn the devices and volumes of
placed members into the writes of the decision: which claims are allocated, what they are reserved
for, and which volumes they are bound to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import replace
from operator import attrgetter

from msgspec.structs import replace as but

from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.other_kinds import ClaimConsumer, DeviceClaim
from phalanx.api.scheduling import PodGroup
from phalanx.api.storage import volume_keys_of
from phalanx.scheduler.cluster.hypothetical import nominated_pods, with_changes
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import ClaimReservation, VolumeAssignment, Waiting
from phalanx.scheduler.devices.extended_resources import (
    extended_claim_spec,
    extended_requests,
    mapping_objects,
    spec_object,
)
from phalanx.scheduler.devices.requests import encode_spec
from phalanx.scheduler.devices.state import (
    NO_DEMAND,
    AssignedClaim,
    ClaimDemand,
    DemandedClaim,
    DeviceState,
    claim_keys_of,
)
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.plugins.claim_assignments import (
    SERVED_BY_DEVICES,
    AssignedClaims,
    ClaimAssignments,
    lists_resource,
)
from phalanx.scheduler.plugins.dynamic_resources import NOT_AVAILABLE
from phalanx.scheduler.plugins.volume_assignments import VolumeAssignments
from phalanx.scheduler.plugins.volume_binding import VOLUME_BINDING
from phalanx.scheduler.plugins.volume_filters import NODE_VOLUME_LIMITS, VOLUME_RESTRICTIONS
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.volumes.demand import NO_VOLUMES, AssignedVolume, VolumeDemand
from phalanx.scheduler.volumes.state import VolumeState, VolumeUser

_HAS_CLAIMS = attrgetter("shape.has_claims")
_HAS_VOLUMES = attrgetter("shape.has_volumes")


# ---- devices -------------------------------------------------------------------------------------


def resolve_claims(entity: Entity, snapshot: Snapshot) -> Entity:
    """Return the entity with the demand of each member's claims in its shape."""
    served = served_resources(entity, snapshot)
    if not served and not any(map(_HAS_CLAIMS, entity.members)):
        return entity
    if not served and all(one.shape.claims or not one.shape.has_claims for one in entity.members):
        return entity
    uses = Counter(key for member in entity.members for key in claim_keys_of(member.pod))
    shared_keys = {key for key, count in uses.items() if count > 1}
    return _ClaimResolver(snapshot, shared_keys, served).resolve(entity)


def served_resources(entity: Entity, snapshot: Snapshot) -> frozenset[str]:
    """The resources that members request, some node does not list, and a DeviceClass serves."""
    inventory = snapshot.devices.inventory
    if not inventory.classes:
        return frozenset()
    names = unlisted_resources(entity, snapshot)
    return frozenset(name for name in names if inventory.class_of_resource(name))


def unlisted_resources(entity: Entity, snapshot: Snapshot) -> set[str]:
    """The extended resources that members request and some node does not list.

    Devices may serve them there.
    """
    requests = {id(member.shape): member.shape.requests for member in entity.members}
    names = {name for amounts in requests.values() for name, _ in amounts if "/" in name}
    return {name for name in names if not lists_resource(snapshot, name).all()}


def with_device_nodes(entity: Entity, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which only devices limit a resource on nodes that do not list it.

    It differs where some nodes list a resource and devices serve it on others.
    """
    listed = {name: lists_resource(snapshot, name) for name in served_resources(entity, snapshot)}
    mixed = {name: mask for name, mask in listed.items() if mask.any()}
    if not mixed:
        return snapshot
    forked = snapshot.fork()
    for name, mask in mixed.items():
        forked.allocatable[~mask, snapshot.columns[name]] = SERVED_BY_DEVICES
    return forked


class _ClaimResolver:
    """Puts demands into shapes; members with equal shapes and demands share one shape.

    `served` are the extended resources that devices serve. Requests for those that no node lists
    are dropped; the others count on the nodes that list them.
    """

    def __init__(self, snapshot: Snapshot, shared_keys: set[Key], served: frozenset[str]) -> None:
        self._devices, self._shared_keys, self._served = snapshot.devices, shared_keys, served
        self._unlisted = {name for name in served if not lists_resource(snapshot, name).any()}
        self._shapes: dict[tuple[int, ClaimDemand], PodShape] = {}

    def resolve(self, entity: Entity) -> Entity:
        """Resolve the claims of all members of a tree."""
        children = tuple(map(self.resolve, entity.children))
        if children:
            members = tuple(member for child in children for member in child.members)
            return replace(entity, members=members, children=children)
        group = entity.group if isinstance(entity.group, PodGroup) else None
        members = tuple(self._with_demand(member, group) for member in entity.members)
        return replace(entity, members=members)

    def _with_demand(self, member: Member, group: PodGroup | None) -> Member:
        shape, demand = member.shape, NO_DEMAND
        if member.pod.spec.resource_claims:
            demand = self._devices.demand_of(member.pod, group, self._shared_keys)
        if self._served and not demand.problem:
            demand = self._with_extended(member.pod, demand)
        if not demand:
            return member
        # By identity: the shapes of the members live as long as the resolver.
        found = self._shapes.get((id(shape), demand))
        if found is None:
            requests = tuple(one for one in shape.requests if one[0] not in self._unlisted)
            found = but(shape, claims=demand, requests=requests, has_claims=True)
            self._shapes[id(shape), demand] = found
        return Member(member.pod, found, member.attempts, member.timestamp)

    def _with_extended(self, pod: Pod, demand: ClaimDemand) -> ClaimDemand:
        requests = extended_requests(pod, self._served, self._devices.inventory).requests
        if not requests:
            return demand
        spec = encode_spec(extended_claim_spec(requests))
        claim = DemandedClaim(spec, resources=tuple(one.resource for one in requests))
        return demand._replace(unallocated=(*demand.unallocated, claim))


def with_nominated_pods(snapshot: Snapshot, priority: int, own: Container[Key]) -> Snapshot:
    """Add the nominated pods of this or a higher priority, except `own`, with what they claim."""
    nominated = nominated_pods(snapshot, priority, own)
    forked = with_changes(snapshot, added=nominated, nominated=True)
    if any(pod.claim_keys for pod in nominated):
        hold_nominated_devices(forked, nominated)
    if any(pod.volume_keys for pod in nominated):
        hold_nominated_volumes(forked, nominated)
    return forked


def hold_nominated_devices(snapshot: Snapshot, nominated: Iterable[AssignedPod]) -> None:
    """Take devices for nominated pods on their nominated nodes. The snapshot must be a fork."""
    assignments, held = ClaimAssignments(snapshot), list[AssignedClaim]()
    for pod in nominated:
        if pod.claim_keys and (i := snapshot.index.get(pod.node)) is not None:
            held += assignments.hold(pod, i)
    if held:
        snapshot.devices = snapshot.devices.fork(added=held)


def find_gone_consumers(entity: Entity, snapshot: Snapshot) -> set[str]:
    """Return the uids of pods that are gone while claims are still reserved for them.

    Their devices are about to be freed. A pending pod counts as gone too: a claim is reserved with
    the binding.
    """
    if not any(map(_HAS_CLAIMS, entity.members)):
        return set()
    present = {pod.uid for pod in snapshot.pod_index.assigned_pods()}
    present |= {member.pod.metadata.uid for member in entity.members}
    return snapshot.devices.pod_consumers() - present


def find_idle_claim(entity: Entity, decision: Waiting, snapshot: Snapshot) -> DeviceClaim | None:
    """Return a claim whose allocation keeps a refused member off nodes, and that no pod uses.

    A scheduler that was stopped before it bound the pods leaves such an allocation behind, and so
    does a node that takes no pods any more. As PostFilter in Kubernetes, the scheduler takes it
    back, one in each attempt. The claim of a PodGroup is in use once a member has a node.
    """
    own = {member.pod.metadata.uid for member in entity.members}
    own |= {
        part.group.metadata.uid
        for part in entity.groups
        if part.group is not None and not snapshot.member_counts.get(part.key, 0)
    }
    refused = {
        one.uid
        for one in decision.pods
        if one.refusal and NOT_AVAILABLE in dict(one.refusal.counts)
    }
    for member in entity.members:
        for key in claim_keys_of(member.pod) if member.pod.metadata.uid in refused else ():
            info = snapshot.devices.claims.get(key)
            if info is None or info.allocation is None or info.allocation.node_selector is None:
                continue
            if all(one.uid in own for one in info.claim.status.reserved_for):
                return info.claim
    return None


def reserve_claims(
    placed: Iterable[tuple[Member, AssignedClaims]], group: PodGroup | None, devices: DeviceState
) -> tuple[ClaimReservation, ...]:
    """Return the allocations and reservations of the claims of placed members, one per consumer."""
    found: dict[tuple[Key, str], ClaimReservation] = {}
    for member, assigned in placed:
        allocations, pod = {one.claim: one.allocation for one in assigned}, member.pod
        for use in devices.uses_of_pod(pod, group):
            key, allocation = (use.claim, use.consumer.uid), allocations.pop(use.claim, None)
            if key not in found or allocation is not None:
                found[key] = ClaimReservation(
                    use.claim, use.uid, use.consumer, pod.metadata.uid, allocation
                )
        for claim, allocation in allocations.items():
            names = {result["request"] for result in allocation["devices"]["results"]}
            every = extended_requests(pod, _resources_of(pod), devices.inventory)
            requests = [one for one in every.requests if one.name in names]
            mappings = [one for one in every.mappings if one.request in names]
            found[claim, pod.metadata.uid] = ClaimReservation(
                claim,
                "",
                ClaimConsumer.of(POD, pod.metadata),
                pod.metadata.uid,
                allocation,
                spec=spec_object(requests),
                request_mappings=mapping_objects(mappings),
            )
    return tuple(found.values())


def _resources_of(pod: Pod) -> frozenset[str]:
    return frozenset(
        name
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for name in (*container.resources.requests, *container.resources.limits)
    )


# ---- volumes -------------------------------------------------------------------------------------


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
