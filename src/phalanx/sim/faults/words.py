"""What groups and pods say of themselves when nothing happens any more: the truth, all of it.

Asked by `ordeal` after the faults have ended. What is true is counted from the store's log; in
which words it is to be said is what the scheduler's last decision about each comes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from phalanx.api.core import Pod
from phalanx.api.meta import Condition, condition
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    DEGRADED,
    DISRUPTION_TARGET,
    INITIALLY_SCHEDULED,
    SCHEDULED,
    CompositePodGroup,
    PodGroup,
)
from phalanx.scheduler.decision import Decision, Placed, promised
from phalanx.scheduler.explain import explain, not_ready
from phalanx.scheduler.queueing.entry import Id
from phalanx.scheduler.queueing.place import Place
from phalanx.scheduler.queueing.queue import Queue
from phalanx.sim.faults.members import Families, Members
from phalanx.sim.tail import Tail
from phalanx.sim.trees import Trees

#: The last decision about an entity.
Last = Callable[[Id], Decision | None]


def untrue(queue: Queue, last: Last, tail: Tail) -> Iterator[str]:
    """Sentences about everything that is said and is not so, or is so and is not said."""
    places = queue.listing()
    families = Families(tail.pods, Trees(tail.groups, tail.composites))
    waiting = {place.id: place for place in places if place.is_group}
    for key, group in tail.groups.items():
        mine, id_ = families.of(key), Id(True, key)
        yield from _miscounted(group, mine)
        yield from _degraded(group, mine)
        yield from _placement(group, mine, waiting.get(id_), last(id_))
    for key, composite in tail.composites.items():
        id_ = Id(True, key, True)
        has_enough = families.have_enough(composite)
        yield from _tree(composite, has_enough, waiting.get(id_), last(id_))
    for place in places:
        decision = last(place.id)
        told = {one.pod: one.message for one in explain(decision).pods} if decision else {}
        nodes = {pod: node for pod, _, node in promised(decision)} if decision else {}
        for key in place.pods:
            yield from _unsaid(tail.pods[key], place, told.get(key), nodes.get(key, ""))


def _miscounted(group: PodGroup, members: Members) -> Iterator[str]:
    """A group counts its members right."""
    status = group.status
    said = status.scheduled_pods, status.pending_pods, status.succeeded_pods, status.failed_pods
    true = members.placed, len(members.pending), members.succeeded, members.failed
    if said != true:
        names = "(placed, pending, succeeded, failed)"
        yield f"group {group.metadata.key} counts {said} {names}, not {true}"


def _degraded(group: PodGroup, members: Members) -> Iterator[str]:
    """A gang that was placed says whether it has lost members that it needs."""
    if not group.is_gang or not _is_true(_said(group, INITIALLY_SCHEDULED)):
        return
    said, there = _said(group, DEGRADED), members.placed + members.succeeded
    if _is_true(said) != (there < group.quorum):
        has = f"group {group.metadata.key} has {there} of {group.quorum}"
        yield f"{has}, but says of {DEGRADED} {_words(said)}"


def _placement(
    group: PodGroup, members: Members, place: Place | None, decision: Decision | None
) -> Iterator[str]:
    """A group says whether it is placed, and else why not."""
    said = _said(group, SCHEDULED)
    if members.placed and members.placed >= group.quorum:
        if not _is_true(said):
            yield f"group {group.metadata.key} is placed, but says {_words(said)}"
    elif place is not None and not _is_true(_said(group, INITIALLY_SCHEDULED)):
        wanted = not_ready(place.unready) if place.unready else _why(decision)
        if said is None or said.status != "False" or wanted not in (None, said.message):
            yield f"group {group.metadata.key} says {_words(said)}, but should say {wanted}"


def _tree(
    composite: CompositePodGroup, has_enough: bool, place: Place | None, decision: Decision | None
) -> Iterator[str]:
    """A group of groups says whether it was placed, and else why not; who is back is no target."""
    name, conditions = composite.metadata.key, composite.status.conditions
    said = condition(conditions, COMPOSITE_INITIALLY_SCHEDULED)
    if has_enough:
        if not _is_true(said):
            yield f"tree {name} is placed, but says {_words(said)}"
        if place is None and condition(conditions, DISRUPTION_TARGET) is not None:
            yield f"tree {name} is placed, but says that it is to make way"
    elif place is not None and not _is_true(said):
        wanted = not_ready(place.unready) if place.unready else _why(decision)
        if said is None or said.status != "False" or wanted not in (None, said.message):
            yield f"tree {name} says {_words(said)}, but should say {wanted}"


def _why(decision: Decision | None) -> str | None:
    return None if decision is None or isinstance(decision, Placed) else explain(decision).message


def _unsaid(pod: Pod, place: Place, wanted: str | None, promise: str) -> Iterator[str]:
    """A pod that waits says why, and whether it was promised a node, but nothing else."""
    key, said = pod.metadata.key, condition(pod.status.conditions, "PodScheduled")
    if said is None or said.status != "False" or not said.reason:
        yield f"pod {key} waits, but says {_words(said)}"
    elif place.unready is None and wanted not in (None, said.message):
        yield f"pod {key} says {_words(said)}, but should say {wanted}"
    if (node := pod.status.nominated_node_name) != promise and place.unready is None:
        yield f"pod {key} was refused and still has a promise of node {node}"


def _said(group: PodGroup, kind: str) -> Condition | None:
    return condition(group.status.conditions, kind)


def _is_true(said: Condition | None) -> bool:
    return said is not None and said.status == "True"


def _words(said: Condition | None) -> str:
    return f"{said.status}: {said.message}" if said else "nothing"
