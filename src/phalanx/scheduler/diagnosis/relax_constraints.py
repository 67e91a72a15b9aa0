"""Cures that edit the refused entity: lower minimum, wider topology, fewer constraints of pods.

Each function yields the cures of one kind. It edits a copy of the entity and lets the experiment
decide (`experiment.py`); the smallest edit that helps is yielded. `cures.py` combines the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import inf

from msgspec.structs import replace as but

from phalanx.api.core import NodeRequirement, NodeSelector, NodeTerm, Pod, Taint, Toleration
from phalanx.api.scheduling import (
    TOPOLOGY_ANNOTATION,
    CompositeGangPolicy,
    CompositePodGroup,
    GangPolicy,
    SchedulingConstraints,
    TopologyConstraint,
)
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.cluster.node_constraints import HARD_EFFECTS
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.diagnosis.experiment import ClusterChange, Experiment, find_smallest
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.explain import CureKind, VerifiedCure
from phalanx.scheduler.placement.topology_domains import ANYWHERE, topology_levels

#: How many groups of a tree are considered, composite groups first.
MAX_GROUPS = 6
#: Taints that describe the state of a node; pods should not tolerate them.
NODE_STATE_TAINT_PREFIX = "node.kubernetes.io/"

PodEdit = Callable[[Pod], Pod]
#: The text of a cure, and the edited entity.
Alternative = tuple[str, Entity]


def suggest_lower_minimum(experiment: Experiment) -> Iterator[VerifiedCure]:
    """Suggest a lower minCount or minGroupCount."""
    entity = experiment.entity
    waiting_by_group = {
        part.waiting.group: part.waiting for part in experiment.waiting.parts if part.waiting
    }
    gangs = [
        part
        for part in entity.groups
        if part.group is not None and part.group.spec.scheduling_policy.gang is not None
    ]
    for gang in _composites_first(gangs):
        waiting, minimum = waiting_by_group.get(gang.key, experiment.waiting), gang.quorum
        fewer = find_smallest(
            partial(_lower_minimum_suffices, experiment, gang),
            minimum - waiting.scheduled,
            minimum - 1,
        )
        if fewer is not None:
            field = "minGroupCount" if gang.is_composite else "minCount"
            suffix = _group_suffix(gang, entity)
            text = f"lower {field}{suffix} from {minimum} to {minimum - fewer}"
            yield VerifiedCure(CureKind.SMALLER, fewer, text)


def suggest_wider_topology(experiment: Experiment) -> Iterator[VerifiedCure]:
    """Suggest a topology key with larger domains, or none."""
    entity = experiment.entity
    for part in _composites_first(
        part for part in entity.groups if part.topology_key or _topology_annotation(part)
    ):
        alternatives = enumerate(_wider_topologies(experiment, part), 1)
        found = next(
            (
                (n, text)
                for n, (text, new) in alternatives
                if experiment.is_placed_after(ClusterChange(new))
            ),
            None,
        )
        if found is not None:
            yield VerifiedCure(CureKind.WIDER, *found)


def suggest_relaxed_pods(experiment: Experiment) -> Iterator[VerifiedCure]:
    """Suggest one more toleration, or one node label less that the pods require."""
    for edits in (
        _toleration_edits(experiment),
        _selector_edits(experiment.entity),
        _affinity_edits(experiment.entity),
    ):
        for text, edit in edits:
            if experiment.is_placed_after(ClusterChange(_edit_pods(experiment.entity, edit))):
                yield VerifiedCure(CureKind.LOOSER, 1, text)
                break


def _composites_first(parts: Iterable[Entity]) -> list[Entity]:
    """Sort composite groups before PodGroups."""
    return sorted(parts, key=lambda part: not part.is_composite)[:MAX_GROUPS]


def _group_suffix(part: Entity, entity: Entity) -> str:
    """Name a group of a tree; "" for the entity itself."""
    if part.ref == entity.ref:
        return ""
    return f" of {part.ref.kind} {part.ref.name}"


def _replace_group(entity: Entity, group: Group) -> Entity:
    """Copy the entity with one of its groups replaced."""
    if entity.group is not None and group_ref(entity.group) == group_ref(group):
        return replace(entity, group=group)
    return replace(entity, children=tuple(_replace_group(part, group) for part in entity.children))


def _lower_minimum_suffices(experiment: Experiment, part: Entity, fewer: int) -> bool:
    return experiment.is_placed_after(
        ClusterChange(_replace_group(experiment.entity, _with_minimum(part, part.quorum - fewer)))
    )


def _with_minimum(part: Entity, quorum: int) -> Group:
    group = part.group
    assert group is not None
    spec = group.spec
    if isinstance(group, CompositePodGroup):
        few = but(group.spec.scheduling_policy, gang=CompositeGangPolicy(quorum))
        return but(group, spec=but(spec, scheduling_policy=few))
    fewer = but(group.spec.scheduling_policy, gang=GangPolicy(quorum))
    return but(group, spec=but(spec, scheduling_policy=fewer))


def _topology_annotation(part: Entity) -> str:
    return part.group.metadata.annotations.get(TOPOLOGY_ANNOTATION, "") if part.group else ""


def _wider_topologies(experiment: Experiment, part: Entity) -> Iterator[Alternative]:
    """Yield wider and wider topologies, the last without any constraint."""
    entity, key, annotation = experiment.entity, part.topology_key, _topology_annotation(part)
    suffix = _group_suffix(part, entity)
    if annotation:
        yield from _later_levels(entity, part)
        text = f'end the annotation {TOPOLOGY_ANNOTATION}{suffix} with "{ANYWHERE}"'
        yield (
            text,
            _replace_group(entity, _with_topology_annotation(part, f"{annotation}, {ANYWHERE}")),
        )
    elif key:
        for wider_key in wider_topology_keys(experiment.known.cache.snapshot(), key):
            text = f"widen the topology{suffix} from {key} to {wider_key}"
            yield text, _replace_group(entity, _with_topology(part, wider_key))
    if key:
        text = f"let the members{suffix} be anywhere, not in one {key}"
        unconstrained = replace(part, group=_with_topology(part, ""))
        yield text, _replace_group(entity, _with_topology_annotation(unconstrained, ""))


def _later_levels(entity: Entity, part: Entity) -> Iterator[Alternative]:
    """The levels of the topology annotation that come into force by waiting."""
    levels = topology_levels(replace(part, waited_seconds=inf))
    suffix = _group_suffix(part, entity).replace(" of ", " for ")
    for key, after in () if isinstance(levels, EntityRejection) else levels:
        if after > entity.waited_seconds:
            scope = f"one {key} will do" if key else "any nodes will do"
            since = f"wait until {after:g} s have passed since it was complete"
            yield f"{since}: then {scope}{suffix}", _with_wait(entity, after)


def _with_wait(entity: Entity, seconds: float) -> Entity:
    parts = tuple(_with_wait(part, seconds) for part in entity.children)
    return replace(entity, children=parts, waited_seconds=seconds)


def _with_topology_annotation(part: Entity, text: str) -> Group:
    """Copy the group with another topology annotation, or ("") without one."""
    group = part.group
    assert group is not None
    others = {k: v for k, v in group.metadata.annotations.items() if k != TOPOLOGY_ANNOTATION}
    annotations = {**others, TOPOLOGY_ANNOTATION: text} if text else others
    return but(group, metadata=but(group.metadata, annotations=annotations))


def _with_topology(part: Entity, key: str) -> Group:
    """Copy the group with another topology constraint, or ("") without one."""
    group = part.group
    assert group is not None
    constraints = SchedulingConstraints((TopologyConstraint(key),)) if key else None
    if isinstance(group, CompositePodGroup):
        return but(group, spec=but(group.spec, scheduling_constraints=constraints))
    return but(group, spec=but(group.spec, scheduling_constraints=constraints))


def wider_topology_keys(snapshot: Snapshot, key: str) -> list[str]:
    """Labels whose domains consist of whole domains of `key`; the next wider first.

    A label with the same value on every node is not a topology.
    """
    coarser: dict[str, dict[str, str]] = {}
    inside = [labels for labels in snapshot.labels if key in labels]
    for other in dict.fromkeys(name for labels in inside for name in labels if name != key):
        values = coarser[other] = {}
        if not all(
            other in labels and values.setdefault(labels[key], labels[other]) == labels[other]
            for labels in inside
        ):
            del coarser[other]
    sizes = {other: len(set(values.values())) for other, values in coarser.items()}
    finest = len({labels[key] for labels in inside})
    return sorted((o for o, n in sizes.items() if 1 < n < finest), key=lambda o: (-sizes[o], o))


def _edit_pods(entity: Entity, edit: PodEdit) -> Entity:
    """Copy the entity with an edit applied to all pending members."""
    edited = ((member, edit(member.pod)) for member in entity.members)
    members = tuple(but(member, pod=pod, shape=shape_of(pod)) for member, pod in edited)
    parts = tuple(_edit_pods(part, edit) for part in entity.children)
    return replace(entity, members=members, children=parts)


def _toleration_edits(experiment: Experiment) -> Iterator[tuple[str, PodEdit]]:
    """One toleration for each taint that excludes members, the most frequent taint first."""
    entity = experiment.entity
    nodes: dict[Taint, int] = {}
    for node in experiment.known.nodes.values():
        for taint in node.spec.taints:
            if taint.effect in HARD_EFFECTS and not taint.key.startswith(NODE_STATE_TAINT_PREFIX):
                nodes[taint] = nodes.get(taint, 0) + 1
    for taint in sorted(nodes, key=lambda taint: (-nodes[taint], format_taint(taint))):
        if not all(member.shape.node_constraints.tolerates(taint) for member in entity.members):
            yield f"let its pods tolerate {format_taint(taint)}", partial(_add_toleration, taint)


def format_taint(taint: Taint) -> str:
    """Format a taint as kubectl does."""
    return f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"


def _add_toleration(taint: Taint, pod: Pod) -> Pod:
    added = Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
    return but(pod, spec=but(pod.spec, tolerations=(*pod.spec.tolerations, added)))


def _selector_edits(entity: Entity) -> Iterator[tuple[str, PodEdit]]:
    """One edit for each label of a node selector."""
    required_labels = {
        pair for member in entity.members for pair in member.shape.node_constraints.node_selector
    }
    for key, value in sorted(required_labels):
        yield f"drop {key}={value} from the node selector of its pods", _drop_selector(key)


def _drop_selector(key: str) -> PodEdit:
    def edit(pod: Pod) -> Pod:
        remaining = {k: v for k, v in pod.spec.node_selector.items() if k != key}
        return but(pod, spec=but(pod.spec, node_selector=remaining))

    return edit


def _affinity_edits(entity: Entity) -> Iterator[tuple[str, PodEdit]]:
    """One edit for each expression of a required node affinity."""
    requirements: dict[NodeRequirement, None] = {}
    for member in entity.members:
        for term in _node_affinity_terms(member.pod):
            requirements |= dict.fromkeys(term.match_expressions)
    for requirement in requirements:
        condition = " ".join(
            filter(None, (requirement.key, requirement.operator, ", ".join(requirement.values)))
        )
        yield f"drop {condition} from the node affinity of its pods", _drop_requirement(requirement)


def _node_affinity_terms(pod: Pod) -> tuple[NodeTerm, ...]:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    selector = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return selector.node_selector_terms if selector else ()


def _drop_requirement(requirement: NodeRequirement) -> PodEdit:
    def edit(pod: Pod) -> Pod:
        affinity = pod.spec.affinity
        if affinity is None or affinity.node_affinity is None or not _node_affinity_terms(pod):
            return pod
        terms = tuple(
            but(
                term,
                match_expressions=tuple(n for n in term.match_expressions if n != requirement),
            )
            for term in _node_affinity_terms(pod)
        )
        # A term without expressions matches no node, so the affinity is removed instead.
        is_valid = all(term.match_expressions or term.match_fields for term in terms)
        nodes = but(
            affinity.node_affinity,
            required_during_scheduling_ignored_during_execution=NodeSelector(terms)
            if is_valid
            else None,
        )
        return but(pod, spec=but(pod.spec, affinity=but(affinity, node_affinity=nodes)))

    return edit
