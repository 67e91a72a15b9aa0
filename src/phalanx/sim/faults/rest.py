"""What must hold when nothing happens any more: views agree with the API, everybody was told.

Asked by `ordeal` of each scheduler after the faults have ended and all is quiet. Everything is held
against what the store's log shows; the scheduler's own books are what is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phalanx.api.core import DEFAULT_SCHEDULER, Pod
from phalanx.api.meta import Condition, Key, condition
from phalanx.api.scheduling import DEGRADED, INITIALLY_SCHEDULED, SCHEDULED, PodGroup
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.diagnosis import Cluster, cache_of
from phalanx.scheduler.entry import State
from phalanx.scheduler.explain import explain, not_ready
from phalanx.scheduler.snapshot import Snapshot
from phalanx.sim.faults.instance import Instance
from phalanx.sim.tail import Tail


def unrest(instance: Instance, tail: Tail) -> Iterator[str]:
    """Sentences about everything that is not as it should be at rest."""
    yield from _beliefs(instance, tail)
    yield from _queued(instance, tail)
    yield from _counted(tail)
    yield from _degraded(tail)
    yield from _told_groups(instance, tail)
    yield from _told_pods(instance, tail)


def _beliefs(instance: Instance, tail: Tail) -> Iterator[str]:
    """The scheduler's cache is what a new one would be, and nothing is assumed."""
    cache = instance.shell.cache
    yield from (f"pod {key} is still assumed to have a node" for key in cache.assumed())
    yield from cache.check()
    yield from differences(cache.snapshot(), cache_of(_cluster(tail)).snapshot())


def _cluster(tail: Tail) -> Cluster:
    spaces = tail.namespaces.items()
    return Cluster(
        tail.nodes.values(), tail.groups.values(), tail.pods.values(), tail.services.values(),
        {key.name: space.metadata.labels for key, space in spaces},
    )  # fmt: skip


def differences(held: Snapshot, true: Snapshot) -> Iterator[str]:
    """Where one snapshot says something else than another, whatever the order of its columns."""
    if held.names != true.names:
        yield f"it knows the nodes {held.names}, but there are {true.names}"
        return
    for name in held.names:
        one, other = _node(held, name), _node(true, name)
        if one != other:
            yield f"it believes {one} of node {name}, but true is {other}"
    if held.members != true.members:
        yield f"it counts {held.members} members with nodes, but there are {true.members}"
    if held.census.carried != true.census.carried:
        yield "it believes other terms to be carried than pods carry"
    if {key: group.spec for key, group in held.groups.items()} != {
        key: group.spec for key, group in true.groups.items()
    }:
        yield "it knows other groups than there are"


def _node(snapshot: Snapshot, name: str) -> dict[str, object]:
    """All that a snapshot says of a node."""
    at = snapshot.index[name]
    taints = list(snapshot.taints)[snapshot.taint_class[at]]
    known: dict[str, object] = {
        "labels": snapshot.labels[at], "taints": taints, "cordoned": bool(snapshot.cordoned[at]),
        "ports": sorted(snapshot.ports.get(at, ())), "scored": snapshot.scored[at].tolist(),
    }  # fmt: skip
    for resource, column in sorted(snapshot.columns.items()):
        known[resource] = int(snapshot.used[at, column]), int(snapshot.room[at, column])
    return {name: value for name, value in known.items() if value and value != (0, 0)}


def _queued(instance: Instance, tail: Tail) -> Iterator[str]:
    """Every pod that wants a node of this scheduler is in its queue, and nobody else is."""
    held = {key: place for place in instance.shell.queue.listing() for key in place.pods}
    wanted = {key: pod for key, pod in tail.pods.items() if _is_pending(pod)}
    yield from (f"pod {key} is not in the queue" for key in wanted if key not in held)
    yield from (f"pod {key} is in the queue for nothing" for key in held if key not in wanted)
    for key, place in held.items():
        expected = _standing(tail, wanted[key]) if key in wanted else place.state
        if place.state is not expected:
            yield f"pod {key} is {place.state.name} in the queue, but should be {expected.name}"


def _is_pending(pod: Pod) -> bool:
    waits = _is_alive(pod) and not pod.spec.node_name
    return waits and pod.spec.scheduler_name == DEFAULT_SCHEDULER


def _is_alive(pod: Pod) -> bool:
    return not pod.ended and not pod.metadata.deletion_timestamp


def _standing(tail: Tail, pod: Pod) -> State:
    """Where a pending pod must stand by what there is of its group."""
    group = tail.groups.get(pod.group) if pod.group else None
    alive = [one for one in _fellows(tail, pod) if _is_alive(one)]
    if pod.group is not None and group is None:
        return State.INCOMPLETE
    if any(_is_pending(one) and one.spec.scheduling_gates for one in alive):
        return State.GATED
    if group is not None and len(alive) < group.quorum:
        return State.INCOMPLETE
    return State.BACKING_OFF


def _fellows(tail: Tail, pod: Pod) -> list[Pod]:
    if pod.group is None:
        return [pod]
    return [one for one in tail.pods.values() if one.group == pod.group]


def _counted(tail: Tail) -> Iterator[str]:
    """Groups count their members right."""
    for key, group in tail.groups.items():
        pods, status = [pod for pod in tail.pods.values() if pod.group == key], group.status
        alive = [pod for pod in pods if _is_alive(pod)]
        placed = sum(bool(pod.spec.node_name) for pod in alive)
        ended = [sum(pod.status.phase == end for pod in pods) for end in ("Succeeded", "Failed")]
        said = [
            status.scheduled_pods,
            status.pending_pods,
            status.succeeded_pods,
            status.failed_pods,
        ]
        true = [placed, len(alive) - placed, *ended]
        if said != true:
            yield f"group {key} counts {said} (placed, pending, succeeded, failed), not {true}"


def _degraded(tail: Tail) -> Iterator[str]:
    """A gang that was placed says whether it has lost members that it needs."""
    for key, group in tail.groups.items():
        if not group.is_gang or not _was_placed(group):
            continue
        pods = [pod for pod in tail.pods.values() if pod.group == key]
        there = sum(bool(pod.spec.node_name) and _is_alive(pod) for pod in pods)
        there += sum(pod.status.phase == "Succeeded" for pod in pods)
        said = condition(group.status.conditions, DEGRADED)
        if (said is not None and said.status == "True") is not (there < group.quorum):
            yield f"group {key} has {there} of {group.quorum}, but says Degraded {_words(said)}"


def _told_groups(instance: Instance, tail: Tail) -> Iterator[str]:
    """Every group says whether it is placed, and else why not."""
    places = {place.key: place for place in instance.shell.queue.listing() if place.is_group}
    for key, group in tail.groups.items():
        members = [pod for pod in tail.pods.values() if pod.group == key and _is_alive(pod)]
        placed = sum(bool(pod.spec.node_name) for pod in members)
        if placed and placed >= group.quorum:
            yield from _says(group, "True", None)
        elif key in places and not _was_placed(group):
            unready = places[key].unready
            wanted = not_ready(unready) if unready else _message(instance, key)
            yield from _says(group, "False", wanted)


def _message(instance: Instance, key: Key) -> str | None:
    _, decision = instance.last.get((key, True), (None, None))
    return None if decision is None or isinstance(decision, Placed) else explain(decision).message


def _was_placed(group: PodGroup) -> bool:
    said = condition(group.status.conditions, INITIALLY_SCHEDULED)
    return said is not None and said.status == "True"


def _says(group: PodGroup, status: str, message: str | None) -> Iterator[str]:
    said = condition(group.status.conditions, SCHEDULED)
    if said is None or said.status != status or message not in (None, said.message):
        wanted = f"{status}: {message}" if message else status
        yield f"group {group.metadata.key} says {_words(said)}, but should say {wanted}"


def _told_pods(instance: Instance, tail: Tail) -> Iterator[str]:
    """Every pod that waits says why."""
    for place in instance.shell.queue.listing():
        wanted = _sentences(instance, place.key, place.is_group, place.pods)
        for key in place.pods:
            pod = tail.pods.get(key)
            if pod is not None and pod.status.nominated_node_name and not place.unready:
                yield f"pod {key} was refused and still has a promise of a node"
            said = condition(pod.status.conditions, "PodScheduled") if pod else None
            if said is None or said.status != "False" or not said.reason:
                yield f"pod {key} waits, but says {_words(said)}"
            elif place.unready is None and key in wanted and wanted[key] != said.message:
                yield f"pod {key} says {_words(said)}, but should say {wanted[key]}"


def _sentences(instance: Instance, key: Key, is_group: bool, pods: Iterable[Key]) -> dict[Key, str]:
    _, decision = instance.last.get((key, is_group), (None, None))
    return {one.pod: one.message for one in explain(decision).pods} if decision else {}


def _words(said: Condition | None) -> str:
    return f"{said.status}: {said.message}" if said else "nothing"
