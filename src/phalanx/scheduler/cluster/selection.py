"""Selection: pods by namespace and labels. What affinity terms and spread constraints are about.

A value without a cluster: who looks passes in the pod's namespace and labels, and the labels of all
namespaces. Says nothing about where pods are; `census.py` counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.api.labelselectors import requirements
from phalanx.api.selectors import Requirement

Labels = Mapping[str, str]

#: A condition that nothing meets: what an absent selector selects.
_NEVER = (Requirement("", "in"),)


@dataclass(frozen=True, slots=True)
class Selection:
    """Pods that meet all of `needs` in some namespaces; hashable, the hash being computed once."""

    needs: tuple[Requirement, ...]
    namespaces: tuple[str, ...] = ()
    #: Also those in namespaces whose labels meet these; None: in no other namespace.
    elsewhere: tuple[Requirement, ...] | None = None
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.needs, self.namespaces, self.elsewhere)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def keys(self) -> Iterable[str]:
        """The labels of a pod that decide whether it is selected."""
        return (need.key for need in self.needs)

    def selects(self, namespace: str, labels: Labels, spaces: Mapping[str, Labels]) -> bool:
        """Whether a pod is among them."""
        return self._reaches(namespace, spaces) and all(need.matches(labels) for need in self.needs)

    def _reaches(self, namespace: str, spaces: Mapping[str, Labels]) -> bool:
        if namespace in self.namespaces:
            return True
        if self.elsewhere is None:
            return False
        labels = spaces.get(namespace, {})
        return all(need.matches(labels) for need in self.elsewhere)

    def __str__(self) -> str:
        return ",".join(map(_written, self.needs)) or "anything"


def needs(
    selector: dict[str, Any] | None,
    own: Labels,
    same: Iterable[str] = (),
    other: Iterable[str] = (),
) -> tuple[Requirement, ...]:
    """What a selector requires, given the labels of the pod that says it.

    `same` names labels whose value must be the pod's own, `other` those whose value must not.
    """
    if selector is None:
        return _NEVER
    ours = [Requirement(k, "in", frozenset({own[k]})) for k in same if k in own]
    theirs = [Requirement(k, "notin", frozenset({own[k]})) for k in other if k in own]
    return (*requirements(selector), *ours, *theirs)


def _written(need: Requirement) -> str:
    values = sorted(need.values)
    match need.operator, values:
        case "in", [value]:
            return f"{need.key}={value}"
        case "exists", _:
            return need.key
        case "absent", _:
            return f"!{need.key}"
        case operator, _:
            return f"{need.key} {operator} ({','.join(values)})"
