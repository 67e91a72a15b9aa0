"""Concessions: what a group or its pods could do without. Smaller, wider and looser, each tried.

Each function yields the remedies of one sort, the smallest that helps of every way there is; it
edits the entity and has the experiment decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import inf

from msgspec.structs import replace as but

from phalanx.api.core import NodeRequirement, NodeSelector, NodeTerm, Pod, Taint, Toleration
from phalanx.api.scheduling import (
    TOPOLOGY,
    CompositeGangPolicy,
    CompositePodGroup,
    GangPolicy,
    SchedulingConstraints,
    TopologyConstraint,
)
from phalanx.scheduler.asking.experiment import Change, Experiment
from phalanx.scheduler.cluster.forest import Group, name_of
from phalanx.scheduler.cluster.shape import shape_of
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.cluster.wishes import HARD_EFFECTS
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.placing.levels import ANYWHERE, levels
from phalanx.scheduler.placing.objections import Objection
from phalanx.scheduler.remedy import Remedy, Sort, smallest

#: How many groups of a tree are looked at, those nearest to the root first.
MOST_GROUPS = 6
#: Taints that say how a node is and not whom it is for: nobody should tolerate them.
OF_STATE = "node.kubernetes.io/"

Edit = Callable[[Pod], Pod]
#: What to say, and what it would make of the entity.
Way = tuple[str, Entity]


def smaller(trial: Experiment) -> Iterator[Remedy]:
    """A lower minimum, of members or of groups."""
    entity = trial.entity
    got = {part.waiting.group: part.waiting for part in trial.waiting.parts if part.waiting}
    for one in _first(one for one in entity.groups if _is_gang(one.group)):
        told = got.get(one.key, trial.waiting)
        now = one.quorum
        fewer = smallest(partial(_suffices, trial, one), now - told.scheduled, now - 1)
        if fewer is not None:
            field = "minGroupCount" if one.is_composite else "minCount"
            text = f"lower {field}{_of(one, entity)} from {now} to {now - fewer}"
            yield Remedy(Sort.SMALLER, fewer, text)


def wider(trial: Experiment) -> Iterator[Remedy]:
    """A topology of larger domains, or none."""
    entity = trial.entity
    for one in _first(one for one in entity.groups if one.topology or _ladder(one)):
        ways = enumerate(_wider(trial, one), 1)
        found = next(((n, text) for n, (text, new) in ways if trial.works(Change(new))), None)
        if found is not None:
            yield Remedy(Sort.WIDER, *found)


def looser(trial: Experiment) -> Iterator[Remedy]:
    """One toleration more, or one label less that nodes must have."""
    for ways in (_tolerations(trial), _selectors(trial.entity), _affinities(trial.entity)):
        for text, edit in ways:
            if trial.works(Change(_each_pod(trial.entity, edit))):
                yield Remedy(Sort.LOOSER, 1, text)
                break


def _first(found: Iterable[Entity]) -> list[Entity]:
    """Composites before their leaves."""
    return sorted(found, key=lambda one: not one.is_composite)[:MOST_GROUPS]


def _of(one: Entity, entity: Entity) -> str:
    """Which group of a tree it is; nothing for the one that is asked about."""
    if one.key == entity.key and one.is_composite == entity.is_composite:
        return ""
    return f" of {'CompositePodGroup' if one.is_composite else 'PodGroup'} {one.key.name}"


def _is_gang(group: Group | None) -> bool:
    return group is not None and group.spec.scheduling_policy.gang is not None


def _with(entity: Entity, group: Group) -> Entity:
    """The entity with another version of one of its groups."""
    if entity.group is not None and name_of(entity.group) == name_of(group):
        return replace(entity, group=group)
    return replace(entity, parts=tuple(_with(part, group) for part in entity.parts))


def _suffices(trial: Experiment, one: Entity, fewer: int) -> bool:
    """Whether it would do if one of the groups needed so many fewer."""
    return trial.works(Change(_with(trial.entity, _lowered(one, one.quorum - fewer))))


def _lowered(one: Entity, quorum: int) -> Group:
    group = one.group
    assert group is not None
    spec = group.spec
    if isinstance(group, CompositePodGroup):
        few = but(group.spec.scheduling_policy, gang=CompositeGangPolicy(quorum))
        return but(group, spec=but(spec, scheduling_policy=few))
    fewer = but(group.spec.scheduling_policy, gang=GangPolicy(quorum))
    return but(group, spec=but(spec, scheduling_policy=fewer))


def _ladder(one: Entity) -> str:
    """What the annotation says about topology."""
    return one.group.metadata.annotations.get(TOPOLOGY, "") if one.group else ""


def _wider(trial: Experiment, one: Entity) -> Iterator[Way]:
    """Wider and wider, to no topology at all."""
    entity, key, ladder = trial.entity, one.topology, _ladder(one)
    whose = _of(one, entity)
    if ladder:
        yield from _later(entity, one)
        text = f'end the annotation {TOPOLOGY}{whose} with "{ANYWHERE}"'
        yield text, _with(entity, _annotated(one, f"{ladder}, {ANYWHERE}"))
    elif key:
        for other in wider_keys(trial.known.cache.snapshot(), key):
            text = f"widen the topology{whose} from {key} to {other}"
            yield text, _with(entity, _spread(one, other))
    if key:
        text = f"let the members{whose} be anywhere, not in one {key}"
        free = replace(one, group=_spread(one, ""))
        yield text, _with(entity, _annotated(free, ""))


def _later(entity: Entity, one: Entity) -> Iterator[Way]:
    """What it will be content with in time, without anybody's doing."""
    rungs = levels(replace(one, waited=inf))
    whose = _of(one, entity).replace(" of ", " for ")
    for key, after in () if isinstance(rungs, Objection) else rungs:
        if after > entity.waited:
            place = f"one {key} will do" if key else "any nodes will do"
            since = f"wait until {after:g} s have passed since it was complete"
            yield f"{since}: then {place}{whose}", _having_waited(entity, after)


def _having_waited(entity: Entity, seconds: float) -> Entity:
    parts = tuple(_having_waited(part, seconds) for part in entity.parts)
    return replace(entity, parts=parts, waited=seconds)


def _annotated(one: Entity, text: str) -> Group:
    """The group with another annotation, or ("") without."""
    group = one.group
    assert group is not None
    others = {k: v for k, v in group.metadata.annotations.items() if k != TOPOLOGY}
    notes = {**others, TOPOLOGY: text} if text else others
    return but(group, metadata=but(group.metadata, annotations=notes))


def _spread(one: Entity, key: str) -> Group:
    """The group with another topology, or ("") without."""
    group = one.group
    assert group is not None
    constraints = SchedulingConstraints((TopologyConstraint(key),)) if key else None
    if isinstance(group, CompositePodGroup):
        return but(group, spec=but(group.spec, scheduling_constraints=constraints))
    return but(group, spec=but(group.spec, scheduling_constraints=constraints))


def wider_keys(snapshot: Snapshot, key: str) -> list[str]:
    """Labels whose domains are made of whole domains of another, and fewer; the next wider first.

    A label that says the same everywhere divides nothing and is none of them.
    """
    homes: dict[str, dict[str, str]] = {}
    inside = [labels for labels in snapshot.labels if key in labels]
    for other in dict.fromkeys(name for labels in inside for name in labels if name != key):
        home = homes[other] = {}
        if not all(
            other in labels and home.setdefault(labels[key], labels[other]) == labels[other]
            for labels in inside
        ):
            del homes[other]
    sizes = {other: len(set(home.values())) for other, home in homes.items()}
    finest = len({labels[key] for labels in inside})
    return sorted((o for o, n in sizes.items() if 1 < n < finest), key=lambda o: (-sizes[o], o))


def _each_pod(entity: Entity, edit: Edit) -> Entity:
    """The entity with all its pending members edited."""
    members = tuple(_edited(member, edit) for member in entity.members)
    parts = tuple(_each_pod(part, edit) for part in entity.parts)
    return replace(entity, members=members, parts=parts)


def _edited(member: Member, edit: Edit) -> Member:
    pod = edit(member.pod)
    return but(member, pod=pod, shape=shape_of(pod))


def _tolerations(trial: Experiment) -> Iterator[tuple[str, Edit]]:
    """The taints that keep members away, those of most nodes first."""
    entity = trial.entity
    nodes: dict[Taint, int] = {}
    for node in trial.known.nodes.values():
        for taint in node.spec.taints:
            if taint.effect in HARD_EFFECTS and not taint.key.startswith(OF_STATE):
                nodes[taint] = nodes.get(taint, 0) + 1
    for taint in sorted(nodes, key=lambda taint: (-nodes[taint], written(taint))):
        if not all(member.shape.wishes.tolerates(taint) for member in entity.members):
            yield f"let its pods tolerate {written(taint)}", _tolerating(taint)


def written(taint: Taint) -> str:
    """A taint as kubectl writes it."""
    return f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"


def _tolerating(taint: Taint) -> Edit:
    one = Toleration(taint.key, "Equal", taint.value, taint.effect)
    return lambda pod: but(pod, spec=but(pod.spec, tolerations=(*pod.spec.tolerations, one)))


def _selectors(entity: Entity) -> Iterator[tuple[str, Edit]]:
    """The labels that members want nodes to have."""
    wanted = {pair for member in entity.members for pair in member.shape.wishes.selector}
    for key, value in sorted(wanted):
        yield f"drop {key}={value} from the node selector of its pods", _unselecting(key)


def _unselecting(key: str) -> Edit:
    def edit(pod: Pod) -> Pod:
        left = {k: v for k, v in pod.spec.node_selector.items() if k != key}
        return but(pod, spec=but(pod.spec, node_selector=left))

    return edit


def _affinities(entity: Entity) -> Iterator[tuple[str, Edit]]:
    """The conditions that members make on nodes."""
    found: dict[NodeRequirement, None] = {}
    for member in entity.members:
        for term in _terms(member.pod):
            found |= dict.fromkeys(term.match_expressions)
    for need in found:
        condition = " ".join(filter(None, (need.key, need.operator, ", ".join(need.values))))
        yield f"drop {condition} from the node affinity of its pods", _undemanding(need)


def _terms(pod: Pod) -> tuple[NodeTerm, ...]:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    wanted = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return wanted.node_selector_terms if wanted else ()


def _undemanding(need: NodeRequirement) -> Edit:
    def edit(pod: Pod) -> Pod:
        affinity = pod.spec.affinity
        if affinity is None or affinity.node_affinity is None or not _terms(pod):
            return pod
        terms = tuple(_without(term, need) for term in _terms(pod))
        # A term without conditions would hold for no node: who asks for nothing has no terms.
        asks = all(term.match_expressions or term.match_fields for term in terms)
        nodes = but(
            affinity.node_affinity,
            required_during_scheduling_ignored_during_execution=NodeSelector(terms)
            if asks
            else None,
        )
        return but(pod, spec=but(pod.spec, affinity=but(affinity, node_affinity=nodes)))

    return edit


def _without(term: NodeTerm, need: NodeRequirement) -> NodeTerm:
    return but(term, match_expressions=tuple(n for n in term.match_expressions if n != need))
