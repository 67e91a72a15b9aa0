"""Sites: where, in the objects of a kind, structs of certain definitions stand.

Rows that are about a struct (its other names, its gated fields) hold wherever that struct is
embedded: in a Pod and in every template of pods. `sites` finds the ways there once, from the
schema; whoever walks an object afterwards goes only those ways:

    sites("core.v1.Pod", {"core.v1.PodSpec": …})        spec ─▶ the rows
    sites("batch.v1.CronJob", {"core.v1.PodSpec": …})   spec.jobTemplate.spec.template.spec ─▶ …

Says nothing about objects themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from phalanx.api.definitions import Node, definition, is_reference
from phalanx.api.openapi import references

R = TypeVar("R")
#: Fields, and ITEM for whatever a list holds, that lead on from a struct.
Way = tuple[str, ...]
ITEM = "[]"


@dataclass(slots=True, eq=False)
class Site(Generic[R]):
    """A place in an object: the rows for what stands there, and the ways further down.

    A struct leads on by its fields, a list or a map by whatever it holds.
    """

    rows: tuple[R, ...] = ()
    fields: dict[str, Site[R]] = field(default_factory=dict)
    item: Site[R] | None = None

    def below(self, step: str) -> Site[R] | None:
        """The place that a field, or a position in a list, leads to."""
        return self.item if self.item is not None else self.fields.get(step)


def sites(root: str, rows: Mapping[str, Sequence[tuple[Way, R]]]) -> Site[R] | None:
    """The places below a definition that have rows; None if there are none.

    Rows are given by the struct that they are about, each with the way that leads on from there.
    """
    leading = _leading(root, rows)
    known: dict[str, Site[R]] = {}

    def struct(name: str) -> Site[R] | None:
        if name not in leading:
            return None
        if name not in known:
            site = known[name] = Site()
            found = {key: below(inner) for key, inner in _fields(name).items()}
            site.fields.update((key, inner) for key, inner in found.items() if inner is not None)
            for way, row in rows.get(name, ()):
                _put(site, way, row)
        return known[name]

    def below(node: Node) -> Site[R] | None:
        if isinstance(node, str):
            return struct(node)
        if "t" in node:
            return struct(node["t"])
        item = below(node["l"] if "l" in node else node["m"])
        return None if item is None else Site(item=item)

    return struct(root)


def _put(site: Site[R], way: Way, row: R) -> None:
    """Add a row further down; what is on the way is made for it."""
    for step in way:
        if step == ITEM:
            site.item = site.item or Site()
            site = site.item
        else:
            site = site.fields.setdefault(step, Site())
    site.rows += (row,)


def _leading(root: str, rows: Collection[str]) -> frozenset[str]:
    """The definitions from which one with rows can be reached, itself among them."""
    names = references(root)
    above: dict[str, list[str]] = {}
    for name in names:
        for node in _fields(name).values():
            above.setdefault(_target(node), []).append(name)
    found = {name: None for name in names if name in rows}
    todo = list(found)
    for name in todo:
        more = [one for one in above.get(name, ()) if one not in found]
        found.update(dict.fromkeys(more))
        todo.extend(more)
    return frozenset(found)


def _fields(name: str) -> dict[str, Node]:
    node: Any = definition(name)
    return {} if isinstance(node, str) else node["p"]


def _target(node: Node) -> str:
    """The definition that a field is of, or a list or a map of; "" if it is of none."""
    while not isinstance(node, str):
        node = next(node[key] for key in ("t", "l", "m") if key in node)
    return node if is_reference(node) else ""
