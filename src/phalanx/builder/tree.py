"""A tree of items, resolved: what each group will be, and where its template will stand.

Two things pass between the levels. Below a group that is disrupted as a whole, a gang that says
nothing of it goes with it. And a group of groups that says nothing of its priority has that of the
groups below it, as a workload has one priority.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.api.rules.workload import COMPOSITES, LEAVES
from phalanx.api.wire import Object
from phalanx.builder.config import All, Gang, SchedulingConfig
from phalanx.builder.item import WorkloadItem
from phalanx.builder.template import written


@dataclass(frozen=True, slots=True)
class Node:
    """An item with its configuration, the path of its template, and the names from the root on."""

    item: WorkloadItem
    config: SchedulingConfig
    path: str
    names: tuple[str, ...]
    children: tuple[Node, ...]

    def walk(self) -> Iterator[Node]:
        """This one, then all that are below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def template(self) -> Object:
        """What it is in a Workload."""
        own = written(self.item.name, self.config, composite=self.item.is_composite)
        for kind, composite in ((LEAVES, False), (COMPOSITES, True)):
            below = [c.template() for c in self.children if c.item.is_composite is composite]
            if below:
                own[kind] = below
        return own


def grow(root: WorkloadItem) -> Node:
    """Resolve every item of a tree."""
    return _grown(root, f"spec.{_list(root)}[0]", (), together=False)


def _grown(item: WorkloadItem, path: str, above: tuple[str, ...], *, together: bool) -> Node:
    config, names = item.resolve(), (*above, item.name)
    if together and config.disruption_mode is None and isinstance(config.policy, Gang):
        config = replace(config, disruption_mode=All())
    together = together or config.disruption_mode == All()
    children = tuple(
        _grown(child, f"{path}.{place}", names, together=together)
        for child, place in zip(item.children, _places(item.children), strict=True)
    )
    return Node(item, _with_priority_of(children, config), path, names, children)


def _list(item: WorkloadItem) -> str:
    return COMPOSITES if item.is_composite else LEAVES


def _places(items: Sequence[WorkloadItem]) -> Iterator[str]:
    """Which place each child has in the list of its sort."""
    filled = {LEAVES: 0, COMPOSITES: 0}
    for item in items:
        yield f"{_list(item)}[{filled[_list(item)]}]"
        filled[_list(item)] += 1


def _with_priority_of(children: Sequence[Node], config: SchedulingConfig) -> SchedulingConfig:
    below = [child.config for child in children]
    if not below:
        return config
    if not config.priority_class_name and config.priority is None:
        config = replace(
            config,
            priority_class_name=_shared([one.priority_class_name for one in below]) or "",
            priority=_shared([one.priority for one in below]),
        )
    policy = config.preemption_policy or _shared([one.preemption_policy for one in below])
    return replace(config, preemption_policy=policy or "")


def _shared(values: Sequence[Any]) -> Any:
    """The value, if it is the same everywhere."""
    return values[0] if all(value == values[0] for value in values) else None
