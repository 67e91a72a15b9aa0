"""The kinds that a server serves, found by where they are served."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.api.kinds import Kind
from phalanx.api.model import KnownModel, Model


class Registry:
    """Rows of kinds, in the order of discovery."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self.kinds = tuple(kinds)
        self._found = {(k.group, k.version, k.plural): k for k in self.kinds}
        self._versions = {(k.group, k.version): None for k in self.kinds}
        self._models: dict[Kind, Model] = {k: KnownModel(k) for k in self.kinds}

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
        """The versions of each group."""
        found: dict[str, list[str]] = {}
        for group, version in self._versions:
            found.setdefault(group, []).append(version)
        return found
