"""Departures: who would make room enough by ending. One pod, one group or one tree; the smallest.

Nobody is told to end anything: it says for whom the entity is waiting. Pods that are leaving, and
those of daemons, which would come back at once, are not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.scheduler.asking.experiment import Change, Experiment
from phalanx.scheduler.cluster.forest import Flaw, Name
from phalanx.scheduler.cluster.shape import shape_of
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.placing.headroom import Headroom, summed
from phalanx.scheduler.remedy import Remedy, Sort

#: So many are tried; if there are more, only those whose room may be enough.
MOST = 14


class Departure(NamedTuple):
    """Pods that would end together, and what they are called."""

    size: int
    title: str
    pods: tuple[Key, ...]


def ending(trial: Experiment) -> Iterator[Remedy]:
    """The smallest whose end is enough."""
    found = sorted(_departures(trial))
    if len(found) > MOST:
        found = _promising(trial, found)
    for size, title, pods in found:
        if trial.works(Change(ended=pods)):
            members = f" and its {size} pods" if size > 1 else ""
            yield Remedy(Sort.ENDING, size, f"wait for {title}{members} to end, or end it")
            return


def _departures(trial: Experiment) -> Iterator[Departure]:
    """All that runs and may end."""
    snapshot, own = trial.known.cache.snapshot(), {pod.metadata.key for pod in trial.entity.others}
    together: dict[str, list[Key]] = {}
    for key, pod in trial.known.pods.items():
        if pod.node and key not in own and _stays(pod):
            for title in _titles(pod, snapshot):
                together.setdefault(title, []).append(key)
    for title, keys in together.items():
        yield Departure(len(keys), title, tuple(sorted(keys)))


def _stays(pod: Pod) -> bool:
    return not pod.metadata.deletion_timestamp and not pod.is_daemon


def _titles(pod: Pod, snapshot: Snapshot) -> Iterator[str]:
    """What would have to end for a pod to: itself, its group, or the tree that it is in."""
    if pod.group is None:
        yield f"Pod {pod.metadata.key}"
        return
    yield f"PodGroup {pod.group}"
    root = snapshot.forest.root(Name(False, pod.group))
    if not isinstance(root, Flaw) and root.is_composite:
        yield f"CompositePodGroup {root.key}"


def _promising(trial: Experiment, found: list[Departure]) -> list[Departure]:
    """Those whose room may be enough."""
    snapshot, pods = trial.known.cache.snapshot(), trial.known.pods
    headroom = Headroom(trial.entity, snapshot, trial.policy)

    def may_do(one: Departure) -> bool:
        ended = [pods[key] for key in one.pods if pods[key].node in snapshot.index]
        freed = summed((snapshot.index[pod.node], shape_of(pod)) for pod in ended)
        return headroom.suffices_without(freed)

    return [one for one in found if may_do(one)]
