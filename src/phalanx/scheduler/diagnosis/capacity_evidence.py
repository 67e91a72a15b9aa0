"""How many members of a gang fit in each place, and what limits them; also in one sentence.

    Entity, Snapshot ─▶ collect_evidence ─▶ CapacityEvidence ─▶ summarize_refusal
                                                                "0 of 3 members fit: every node …"

Constraints between pods can only reduce the numbers. The sentence is the first that a user reads of
`phalanx why` and `phalanx what-if`; Kubernetes' own ("minCount (3) cannot be satisfied: …") is that
of the conditions, which programs read.

A sentence for each PersistentVolumeClaim says what it contributes to the wait of pending pods:

    claim data-0 is bound to volume v-0 in zone b
    claim data-1 is bound to volume v-1, which only nodes with kubernetes.io/hostname=n2 can use
    claim data-3 is not bound: storage class fast does not exist
    waiting for claim data-2 to be provisioned on node-3 (12 s)

Bound claims stay bound when an attempt to provision others fails, and restrict the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.api.core import NodeSelector, Pod
from phalanx.api.meta import parse_timestamp
from phalanx.api.storage import SELECTED_AT_ANNOTATION, PersistentVolumeClaim, volume_keys_of
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.decision import Decision, Waiting
from phalanx.scheduler.devices.requests import describe_claim
from phalanx.scheduler.devices.state import ClaimDemand, DemandedClaim
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.capacity_estimate import count_needed, distinct_shapes
from phalanx.scheduler.placement.claim_placement import (
    resolve_claims,
    resolve_volumes,
    with_device_nodes,
)
from phalanx.scheduler.placement.topology_domains import node_capacities
from phalanx.scheduler.plugins.claim_assignments import claim_capacities
from phalanx.scheduler.plugins.plugin import FilterDependency
from phalanx.scheduler.plugins.plugin_context import initial_context
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.volumes.state import VolumeInfo, VolumeState

#: The sentence about a cluster in which nothing can be placed.
NO_NODES = "the cluster has no nodes."
#: How many rows are reported for each shape of member, and how many shapes.
MAX_PLACES, MAX_SHAPES = 8, 4


class CapacityRow(NamedTuple):
    """How many members of one shape fit in one place: a sort of node, or a topology domain."""

    #: The requests of each member, and the number of members.
    requests: str
    members: int
    place: str
    nodes: int
    #: How many fit now, and how many would fit if no pod ran there.
    fit: int
    empty: int
    #: The scarcest resource, or the reason why the nodes reject them; "" if all of them fit.
    limit: str


class CapacityEvidence(NamedTuple):
    """The capacity for the members of an entity, by place."""

    #: The topology key of the places; "" if they are sorts of nodes.
    key: str
    needed: int
    rows: tuple[CapacityRow, ...]
    #: How many places are not listed.
    more: int = 0
    #: For each claim of the members: how many members find its devices, and which.
    devices: tuple[str, ...] = ()


def collect_evidence(
    entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy
) -> CapacityEvidence:
    """Count how many members fit in each place; the places with the most capacity first."""
    snapshot = with_device_nodes(entity, snapshot)
    entity = resolve_volumes(resolve_claims(entity, snapshot), snapshot, policy)
    members = Counter(member.shape for member in entity.members)
    reported: list[CapacityRow] = []
    more = 0
    for shape in distinct_shapes(entity)[:MAX_SHAPES]:
        rows = list(
            _capacity_rows(
                shape,
                members[shape],
                key=entity.topology_key,
                snapshot=snapshot,
                policy=policy,
            )
        )
        rows.sort(key=lambda row: (-row.fit, -row.empty, row.place))
        reported += rows[:MAX_PLACES]
        more = max(more, len(rows) - MAX_PLACES)
    return CapacityEvidence(
        entity.topology_key,
        count_needed(entity, snapshot),
        tuple(reported),
        more=more,
        devices=tuple(_describe_devices(members, snapshot)),
    )


def _describe_devices(members: Mapping[PodShape, int], snapshot: Snapshot) -> Iterator[str]:
    """Say for each claim how many members find devices for it, if not all of them do."""
    wanted = Counter[DemandedClaim]()
    for shape, count in members.items():
        for claim in shape.claims.unallocated:
            wanted[claim] += count
    for claim, count in wanted.items():
        served = int(claim_capacities(snapshot, ClaimDemand((claim,))).sum())
        if served < count:
            requests = snapshot.devices.requests.get(claim.spec)
            text = describe_claim(requests, snapshot.devices.inventory)
            yield f"{served} of {count} members find {text}"


def _capacity_rows(
    shape: PodShape, members: int, key: str, *, snapshot: Snapshot, policy: SchedulerPolicy
) -> Iterator[CapacityRow]:
    capacities = node_capacities(snapshot, policy, shape)
    empty = snapshot.fork()
    empty.requested[:], empty.used_ports = 0, {}
    empty.devices = snapshot.devices.fork(snapshot.devices.pod_consumers())
    if_empty = node_capacities(empty, policy, shape)
    rejections = _node_rejections(shape, snapshot, policy)
    places = _similar_nodes(rejections, snapshot)
    if key:
        domains = snapshot.domains(key)
        places = ((value, domains.nodes(number)) for number, value in enumerate(domains.values))
    for place, nodes in places:
        fit, fit_if_empty = int(capacities[nodes].sum()), int(if_empty[nodes].sum())
        # What would not fit on empty nodes either is limited by what those have.
        limiting = snapshot if fit_if_empty else empty
        limit = (
            _limiting_reason(shape, nodes, rejections, snapshot=limiting) if fit < members else ""
        )
        yield CapacityRow(
            str(shape),
            members,
            place,
            nodes=len(nodes),
            fit=fit,
            empty=fit_if_empty,
            limit=limit,
        )


def _similar_nodes(rejections: Sequence[str], snapshot: Snapshot) -> Iterator[tuple[str, IntArray]]:
    """Group nodes with the same allocatable resources and the same reason to reject a member."""
    nodes_by_kind: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for node, allocatable in enumerate(snapshot.allocatable.tolist()):
        nodes_by_kind.setdefault((rejections[node], tuple(allocatable)), []).append(node)
    for nodes in nodes_by_kind.values():
        name = snapshot.names[nodes[0]]
        yield name if len(nodes) == 1 else f"like {name}", np.array(nodes, np.int64)


def _node_rejections(shape: PodShape, snapshot: Snapshot, policy: SchedulerPolicy) -> list[str]:
    """Why each node rejects such a member whatever runs there; "" if it does not."""
    context, rejections = initial_context(snapshot, shape), [""] * len(snapshot)
    for filter_ in policy.filters.values():
        reject = filter_.static_part
        if filter_.depends_on is FilterDependency.NODES:
            reject = filter_.reject
        if reject is not None:
            for reason, mask in reject(context):
                for prefix in ("node(s) ", "were ", "had "):
                    reason = reason.removeprefix(prefix)
                for node in np.flatnonzero(mask).tolist():
                    rejections[node] = rejections[node] or reason
    return rejections


def _limiting_reason(
    shape: PodShape, nodes: IntArray, rejections: Sequence[str], *, snapshot: Snapshot
) -> str:
    """The most frequent reason why these nodes accept no further member."""
    served = claim_capacities(snapshot, shape.claims)
    found = Counter(
        rejections[node] or _scarcest_resource(shape, node, snapshot, served=int(served[node]))
        for node in nodes.tolist()
    )
    return max(sorted(found), key=found.__getitem__)


def _scarcest_resource(shape: PodShape, node: int, snapshot: Snapshot, *, served: int) -> str:
    """The resource that is sufficient for the fewest such members on a node.

    `served` is the number of members for which its devices are sufficient.
    """
    columns = snapshot.columns

    def holds(request: tuple[str, int]) -> int:
        name, amount = request
        if name not in columns:
            return 0
        free = int(
            snapshot.allocatable[node, columns[name]] - snapshot.requested[node, columns[name]]
        )
        return max(free, 0) // amount

    scarcest = min(shape.requests, key=holds, default=None)
    if scarcest is None or served < holds(scarcest):
        return "devices"
    return scarcest[0]


def summarize_refusal(
    decision: Decision, evidence: CapacityEvidence, *, bound: int = 0, condition: str = ""
) -> str:
    """Say in one sentence why a decision refuses a gang, whose capacity is the evidence.

    `bound` members have a node already; `condition` says when the numbers hold, such as "even if
    nothing else ran".
    """
    if isinstance(decision, Waiting) and decision.undecided:
        return f"no placement was found, but one may exist: {decision.undecided}."
    return _describe_shortage(evidence, bound=bound, condition=condition)


def _describe_shortage(evidence: CapacityEvidence, *, bound: int, condition: str) -> str:
    """Say how many members fit and what the nodes lack: "0 of 3 members fit: every node lacks cpu."

    If free resources are not the reason, if the members differ or if places are not listed, say
    only that too few fit together.
    """
    more, when = " more" if bound else "", f" {condition}" if condition else ""
    level, needed, rows = label_suffix(evidence.key), evidence.needed, evidence.rows
    if rows and len({row.requests for row in rows}) == 1:
        members = f"{needed}{more} members fit"
        best = max(rows, key=lambda row: row.fit)
        if level and 0 < best.fit < needed:
            limits = _describe_limits([best], f"the nodes of {best.place}")
            return f"at most {best.fit} of {members} in one {level}{when}: {limits}."
        fit = best.fit if level else sum(row.fit for row in rows)
        if fit < needed and not evidence.more:
            where = f" in any {level}" if level else ""
            return f"{fit} of {members}{where}{when}: {_describe_limits(rows)}."
    if level and not rows:
        return f"no node has the label {evidence.key}."
    if not rows:
        return NO_NODES
    where = f" in one {level}" if level else ""
    if needed == 1:
        return f"no{more} member fits{where}{when}."
    return f"the {needed}{more} members that it needs do not fit together{where}{when}."


def label_suffix(key: str) -> str:
    """Return a label key without its prefix: `rack` for `topology.kubernetes.io/rack`."""
    return key.rpartition("/")[2]


def _describe_limits(rows: Sequence[CapacityRow], nodes: str = "all nodes") -> str:
    """Describe what keeps further members from the nodes of these rows."""
    resources = {part.rpartition(" ")[0] for part in rows[0].requests.split(", ")}
    nodes_by_limit: Counter[str] = Counter()
    for row in rows:
        nodes_by_limit[row.limit] += row.nodes
    has_free = any(row.fit for row in rows)
    if len(nodes_by_limit) == 1 and (limit := rows[0].limit) in resources:
        return f"{nodes} run out of {limit}" if has_free else f"every node lacks {limit}"
    parts = []
    for limit, count in nodes_by_limit.most_common():
        reason = f"without enough {limit}" if limit in resources else f"rejected ({limit})"
        parts.append(f"{count} node{'' if count == 1 else 's'} {reason}")
    return ", ".join(parts)


# ---- volume claims -------------------------------------------------------------------------------


def describe_volume_claims(pods: Iterable[Pod], state: VolumeState, now: float) -> tuple[str, ...]:
    """Say for each claim of pending pods which nodes it allows, or what it waits for."""
    found: dict[str, None] = {}
    for pod in pods:
        for key in volume_keys_of(pod):
            claim = state.claims.get(key)
            if claim is None:
                continue
            info = state.volumes.get(claim.spec.volume_name) if claim.is_bound else None
            if info is not None and (text := _describe_bound(claim, info)):
                found[text] = None
            elif not claim.is_bound and claim.selected_node:
                text = f"waiting for claim {claim.metadata.name} to be provisioned"
                text += f" on {claim.selected_node}"
                since = claim.metadata.annotations.get(SELECTED_AT_ANNOTATION)
                if since and now:
                    text += f" ({max(now - parse_timestamp(since), 0):.0f} s)"
                found[text] = None
            elif not claim.is_bound and (text := _describe_unbound(claim, state)):
                found[text] = None
    return tuple(found)


def is_being_provisioned(pods: Iterable[Pod], state: VolumeState) -> bool:
    """Whether pods wait for volumes that are provisioned for their nominated nodes."""
    return any(
        claim is not None and not claim.is_bound and claim.selected_node == node
        for pod in pods
        if (node := pod.status.nominated_node_name)
        for claim in map(state.claims.get, volume_keys_of(pod))
    )


def _describe_bound(claim: PersistentVolumeClaim, info: VolumeInfo) -> str:
    text = f"claim {claim.metadata.name} is bound to volume {info.name}"
    for key, values in info.zones:
        return f"{text} in {key.rpartition('/')[2]} {' or '.join(sorted(values))}"
    if info.affinity is None:
        return ""
    return f"{text}, which only nodes with {' or '.join(_format_terms(info.affinity))} can use"


def _format_terms(selector: NodeSelector) -> Iterator[str]:
    for term in selector.node_selector_terms:
        needs = [
            f"{need.key}={'|'.join(need.values)}"
            if need.operator == "In"
            else f"{need.key} {need.operator} {'|'.join(need.values)}".rstrip()
            for need in (*term.match_expressions, *term.match_fields)
        ]
        yield ", ".join(needs)


def _describe_unbound(claim: PersistentVolumeClaim, state: VolumeState) -> str:
    """Say what a claim lacks that is bound without regard to pods; "" if it is bound with one."""
    text, name = f"claim {claim.metadata.name} is not bound", claim.storage_class
    if volume := claim.spec.volume_name:
        lacks = "" if volume in state.volumes else ", which does not exist"
        return f"{text}: it names volume {volume}{lacks}"
    if name and name not in state.classes:
        return f"{text}: storage class {name} does not exist"
    if name and state.classes[name].waits_for_consumer:
        return ""
    kind = f"storage class {name}" if name else "no storage class"
    return f"{text}: it waits for a volume of {kind}"
