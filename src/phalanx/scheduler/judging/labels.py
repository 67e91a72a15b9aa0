"""Labels: with which ones a node would be where a pod's selector and affinity want it to be.

Asked by `filters.py` for the words of a refusal. Labels are given or changed, never taken away, and
the name of a node is what it is; what takes more than that has no answer here. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phalanx.api.selectors import Requirement
from phalanx.scheduler.cluster.selection import Labels
from phalanx.scheduler.cluster.wishes import Place, Wishes

#: What a label is set to that may have any value.
_ANY = "true"


def lacking(wishes: Wishes, labels: Labels, name: str) -> dict[str, str] | None:
    """The fewest labels that a node of these labels and this name lacks; None: more than labels."""
    found = [
        {key: value for key, value in given.items() if labels.get(key) != value}
        for given in _selected(wishes, labels, name)
    ]
    return min(found, key=len, default=None)


def within(places: Iterable[Place], labels: Labels, name: str) -> bool:
    """Whether a node of these labels and this name is in one of some places."""
    return any(_holds(place, labels, name) for place in places)


def _selected(wishes: Wishes, labels: Labels, name: str) -> Iterator[Labels]:
    """The labels of a node after it has got those that it lacks, one for each place."""
    selector = dict(wishes.selector)
    if wishes.places is None:
        yield {**labels, **selector}
    for place in wishes.places or ():
        given = {**labels, **selector}
        for need in place.labels:
            if need.key not in selector and not need.matches(given):
                given |= _met(need)
        if _holds(place, given, name):
            yield given


def _met(need: Requirement) -> dict[str, str]:
    """A label that meets a condition, where giving one does."""
    match need.operator:
        case "in" if need.values:
            return {need.key: min(need.values)}
        case "exists":
            return {need.key: _ANY}
        case _:
            return {}


def _holds(place: Place, labels: Labels, name: str) -> bool:
    return (
        bool(place.labels or place.names)
        and all(need.matches(labels) for need in place.labels)
        and all(need.matches({need.key: name}) for need in place.names)
    )
