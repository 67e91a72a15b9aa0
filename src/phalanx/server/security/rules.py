"""Rules of roles as values: what one allows, and whether some cover another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from phalanx.api.wire import Object

ALL = "*"


class Ask(NamedTuple):
    """What somebody wants to do: a verb on a resource (`pods`, `pods/status`), or on a path."""

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    #: The field selector of a list or a watch, as it was sent.
    fields: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on resources, perhaps of some names alone; or on paths."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    @classmethod
    def read(cls, rule: Object) -> Rule:
        """A rule as a role holds it."""
        fields = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
        return cls(*(tuple(rule.get(field) or ()) for field in fields))

    def shown(self) -> Object:
        """The rule as a role holds it."""
        said = {
            "verbs": self.verbs, "apiGroups": self.groups, "resources": self.resources,
            "resourceNames": self.names, "nonResourceURLs": self.paths,
        }  # fmt: skip
        return {field: list(values) for field, values in said.items() if values}

    def __str__(self) -> str:
        rows = (
            ("APIGroups", self.groups), ("Resources", self.resources),
            ("ResourceNames", self.names), ("NonResourceURLs", self.paths), ("Verbs", self.verbs),
        )  # fmt: skip
        said = (f"{name}:[{', '.join(map(_quoted, v))}]" for name, v in rows if v)
        return "{" + ", ".join(said) + "}"

    def allows(self, ask: Ask) -> bool:
        """Whether it allows what is asked, of an object of that very name."""
        return self.concerns(ask) and (not self.names or ask.name in self.names)

    def concerns(self, ask: Ask) -> bool:
        """Whether it allows what is asked, if perhaps of other names alone."""
        if ask.verb not in self.verbs and ALL not in self.verbs:
            return False
        if ask.path:
            return any(_path_matches(path, ask.path) for path in self.paths)
        is_group = ask.group in self.groups or ALL in self.groups
        return is_group and _resource_matches(self.resources, ask.resource)

    def split(self) -> Iterator[Rule]:
        """The same in rules of one verb and one resource or path each."""
        for verb, path in product(self.verbs, self.paths):
            yield Rule((verb,), paths=(path,))
        names: Sequence[tuple[str, ...]] = [(name,) for name in self.names] or [()]
        for row in product(self.verbs, self.groups, self.resources, names):
            verb, group, resource, name = row
            yield Rule((verb,), (group,), (resource,), name)


def uncovered(held: Sequence[Rule], wanted: Iterable[Rule]) -> list[Rule]:
    """What of some rules is not allowed by others: nobody may grant it who holds the others."""
    parts = (part for rule in wanted for part in rule.split())
    return [part for part in parts if not any(_covers(rule, part) for rule in held)]


def _covers(rule: Rule, part: Rule) -> bool:
    """Whether a rule allows all that a part, which names one thing of each sort, does."""
    if part.verbs[0] not in rule.verbs and ALL not in rule.verbs:
        return False
    if part.paths:
        return any(_path_matches(path, part.paths[0]) for path in rule.paths)
    is_group = part.groups[0] in rule.groups or ALL in rule.groups
    is_name = not rule.names or (bool(part.names) and part.names[0] in rule.names)
    return is_group and is_name and _resource_matches(rule.resources, part.resources[0])


def _resource_matches(known: Sequence[str], resource: str) -> bool:
    """`*` is everything, `*/status` that part of everything."""
    if resource in known or ALL in known:
        return True
    _, slash, part = resource.partition("/")
    return bool(slash) and f"*/{part}" in known


def _path_matches(pattern: str, path: str) -> bool:
    """A star at the end stands for whatever follows."""
    return pattern == path or (pattern.endswith(ALL) and path.startswith(pattern[:-1]))


def _quoted(text: str) -> str:
    return f'"{text}"'
