"""What a scheduler must believe when nothing happens any more: what the API shows.

Asked by `ordeal` of each scheduler after the faults have ended and all is quiet. Everything is held
against the store's log; the scheduler's cache and queue are what is judged. What groups and pods
say of themselves is judged in `words.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.api.core import Pod
from phalanx.scheduler.asking.diagnosis import Cluster, cache_of
from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.cluster.forest import Name
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.queueing.entry import State
from phalanx.scheduler.queueing.queue import Queue
from phalanx.sim.faults.members import Families, is_waiting
from phalanx.sim.tail import Tail
from phalanx.sim.trees import Trees


def unrest(cache: Cache, queue: Queue, tail: Tail) -> Iterator[str]:
    """Sentences about everything that a scheduler at rest believes and is not so."""
    yield from (f"pod {key} is still assumed to have a node" for key in cache.assumed())
    yield from (f"pod {key} is still taken for a victim" for key, _ in cache.doomed())
    yield from cache.check()
    yield from differences(cache.snapshot(), cache_of(_cluster(tail)).snapshot())
    yield from _misplaced(queue, tail)


def _cluster(tail: Tail) -> Cluster:
    return Cluster(
        tail.nodes.values(), [*tail.groups.values(), *tail.composites.values()],
        tail.pods.values(), tail.services.values(),
        {key.name: space.metadata.labels for key, space in tail.namespaces.items()},
        tail.budgets.values(),
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
    if _specs(held) != _specs(true):
        yield "it knows other groups than there are"
    if held.claims != true.claims:
        yield f"it keeps {_nodes(held)} for pods, but they were promised {_nodes(true)}"
    if held.budgets != true.budgets:
        yield "it knows other disruption budgets than there are"


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


def _specs(snapshot: Snapshot) -> dict[Name, object]:
    return {name: group.spec for name, group in snapshot.forest.groups.items()}


def _nodes(snapshot: Snapshot) -> dict[str, str]:
    return {str(key): claim.node for key, claim in sorted(snapshot.claims.items())}


def _misplaced(queue: Queue, tail: Tail) -> Iterator[str]:
    """Every pod that wants a node is in the queue, where it belongs, and nobody else is."""
    held = {key: place.state for place in queue.listing() for key in place.pods}
    waiting = {key: pod for key, pod in tail.pods.items() if is_waiting(pod)}
    families = Families(tail.pods, Trees(tail.groups, tail.composites))
    yield from (f"pod {key} is in the queue for nothing" for key in held if key not in waiting)
    for key, pod in waiting.items():
        expected = _standing(families, pod)
        if held.get(key) is not expected:
            where = held[key].name if key in held else "not"
            yield f"pod {key} is {where} in the queue, but should be {expected.name}"


def _standing(families: Families, pod: Pod) -> State:
    """Where a pod that waits must stand, by what there is of the tree that its group is in."""
    if pod.group is None:
        return State.GATED if pod.spec.scheduling_gates else State.BACKING_OFF
    root = families.trees.root(pod.group)
    if root is None:
        return State.INCOMPLETE
    if families.are_gated(root):
        return State.GATED
    return State.BACKING_OFF if families.are_there(root) else State.INCOMPLETE
