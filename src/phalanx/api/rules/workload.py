"""Rules of Workloads: trees of templates, of which only the counts of gangs may change.

Each template is judged by itself, at its place; what holds for the tree as a whole (names, depth,
children, priorities) is judged in walks over it. The pieces are those of PodGroups.

    spec                            exactly one of the two lists
      podGroupTemplates             up to 8, made once, each of its own name
      compositePodGroupTemplates    the same; below each of them both lists, three deep at most
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from phalanx.api.causes import Causes, duplicate, invalid
from phalanx.api.errors import Cause
from phalanx.api.fields import path_segment_faults
from phalanx.api.rules.checks import (
    CREATED,
    Check,
    at_most,
    changed,
    each_by,
    every,
    frozen,
    given,
    needed,
    present,
    same_items,
    struct,
    text,
    union,
    unique,
)
from phalanx.api.rules.group import LABEL, POD_GROUP_TERMS, SUBDOMAIN, policy, terms
from phalanx.api.wire import Object

MAX_TEMPLATES = 8
#: Levels of a tree, the one of pod groups among them.
MAX_DEPTH = 4

LEAVES, COMPOSITES = "podGroupTemplates", "compositePodGroupTemplates"


# ------------------------------------------------------------------------------ each by itself


def _templates(check: Check) -> Check:
    """A list of templates that are there from the beginning to the end; absent, it is empty."""
    items = every(unique("name"), each_by("name", check))
    inner = changed(at_most(MAX_TEMPLATES, same_items("name", items)))

    def check_templates(new: Any, old: Any) -> Causes:
        return inner(new or [], CREATED if old is CREATED else old or [])

    return check_templates


_LEAF_LIST = (LEAVES, _templates(struct(("name", needed(LABEL)), *POD_GROUP_TERMS)))
_COMPOSITE = (("name", needed(LABEL)), *terms(policy("minGroupCount")), _LEAF_LIST)


def _composites(levels: int) -> Check:
    """Composites with so many levels below them; whatever is deeper is refused unseen."""
    below = ((COMPOSITES, _composites(levels - 1)),) if levels else ()
    return _templates(struct(*_COMPOSITE, *below))


_SEGMENT = needed(text(path_segment_faults))
_CONTROLLER = struct(("apiGroup", given(SUBDOMAIN)), ("kind", _SEGMENT), ("name", _SEGMENT))

_SPEC = every(
    union(LEAVES, COMPOSITES),
    struct(
        ("controllerRef", frozen(present(_CONTROLLER))),
        _LEAF_LIST,
        (COMPOSITES, _composites(MAX_DEPTH - 2)),
    ),
)

# ---------------------------------------------------------------------------- the tree as a whole


class _Listed(NamedTuple):
    """A list of templates somewhere in a tree."""

    path: str
    level: int
    templates: list[Object]


def _lists(spec: Object) -> Iterator[_Listed]:
    """Every list of templates that is not too deep, each before those below its items."""
    yield _Listed(LEAVES, 1, spec.get(LEAVES, []))
    todo = [_Listed(COMPOSITES, 1, spec.get(COMPOSITES, []))]
    while todo:
        composites = todo.pop(0)
        yield composites
        for at, one in enumerate(composites.templates):
            path, level = f"{composites.path}[{at}]", composites.level + 1
            yield _Listed(f"{path}.{LEAVES}", level, one.get(LEAVES, []))
            if level < MAX_DEPTH:
                todo.append(_Listed(f"{path}.{COMPOSITES}", level, one.get(COMPOSITES, [])))


def _names_differ(new: Any, old: Any) -> Causes:
    """No name stands in two lists; two of one list are told of where that is judged."""
    taken: set[str] = set()
    found: list[Cause] = []
    for path, _, templates in _lists(new):
        names = [one.get("name", "") for one in templates]
        found += [
            duplicate(f"{path}[{at}].name", name)
            for at, name in enumerate(names)
            if name and name in taken
        ]
        taken.update(names)
    return found


def _is_flat_enough(new: Any, old: Any) -> Causes:
    detail = f"maximum template hierarchy depth is {MAX_DEPTH}"
    return [
        invalid(f"{COMPOSITES}[{at}]", one.get("name", ""), detail)
        for at, one in enumerate(new.get(COMPOSITES, ()))
        if _height(one) > MAX_DEPTH - 1
    ]


def _height(composite: Object) -> int:
    """How many composites stand above each other, this one the highest."""
    levels, below = 0, [composite]
    while below:
        levels += 1
        below = [child for one in below for child in one.get(COMPOSITES, ())]
    return levels


def _have_children(new: Any, old: Any) -> Causes:
    detail = "must have at least one child PodGroupTemplate or CompositePodGroupTemplate"
    return [
        invalid(f"{path}[{at}]", one.get("name", ""), detail)
        for path, _, templates in _lists(new)
        if path.endswith(COMPOSITES)
        for at, one in enumerate(templates)
        if not one.get(LEAVES) and not one.get(COMPOSITES)
    ]


def _priorities_agree(new: Any, old: Any) -> Causes:
    templates = [one for listed in _lists(new) for one in listed.templates]
    said = {(one.get("priorityClassName", ""), one.get("priority")) for one in templates}
    if len(said) <= 1:
        return ()
    flat = "detected multiple priority configurations"
    tree = "all priority and priorityClassName values must be identical, detected multiple values"
    return [invalid("", None, tree if new.get(COMPOSITES) else flat)]


_TREE = every(_names_differ, _is_flat_enough, _have_children, _priorities_agree)

WORKLOAD: Check = struct(("spec", present(every(_TREE, _SPEC))))
