"""The kinds that a server serves, found by where they are served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.api.custom.kinds import version_rank
from phalanx.api.kinds import Kind
from phalanx.api.model import KnownModel, Model

#: A kind and how its objects are judged.
Row = tuple[Kind, Model]


class Registry:
    """Rows of kinds, in the order of discovery: what is always there, then what users define."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._known: dict[Kind, Model] = {kind: KnownModel(kind) for kind in kinds}
        self._defined: dict[str, dict[Kind, Model]] = {}
        self._arrange()

    def define(self, name: str, rows: Sequence[Row]) -> None:
        """Serve what a definition defines in place of what it defined before, if anything."""
        self._defined.pop(name, None)
        if rows:
            self._defined[name] = dict(rows)
        self._arrange()

    def judge(self, kind: Kind, model: Model) -> None:
        """Judge a kind that is always there by another model than by its rows."""
        self._known[kind] = model
        self._arrange()

    def _arrange(self) -> None:
        self._models = dict(self._known)
        for _, rows in sorted(self._defined.items()):
            free = {k: m for k, m in rows.items() if not self.is_known(k.group, k.plural)}
            self._models |= free
        self.kinds = tuple(self._models)
        self._found = {(k.group, k.version, k.plural): k for k in reversed(self.kinds)}
        self._versions = {(k.group, k.version): None for k in self.kinds}

    @property
    def known(self) -> tuple[Kind, ...]:
        """The kinds that are always there."""
        return tuple(self._known)

    def is_known(self, group: str, plural: str) -> bool:
        """Whether a kind of that name is always there, in whatever version."""
        return any((kind.group, kind.plural) == (group, plural) for kind in self._known)

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind that is served at that place."""
        return self._found.get((group, version, plural))

    def model(self, kind: Kind) -> Model:
        """How objects of a kind are judged."""
        return self._models.get(kind) or KnownModel(kind)

    def serves(self, group: str, version: str) -> bool:
        """Whether anything is served in that group version."""
        return (group, version) in self._versions

    def of(self, group: str, version: str) -> list[Kind]:
        """All kinds of a group version."""
        return [k for k in self.kinds if (k.group, k.version) == (group, version)]

    def groups(self) -> dict[str, list[str]]:
        """The versions of each group, those that clients should prefer first."""
        found: dict[str, list[str]] = {}
        for group, version in self._versions:
            found.setdefault(group, []).append(version)
        return {group: sorted(versions, key=version_rank) for group, versions in found.items()}
