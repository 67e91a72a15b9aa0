"""Manifests as tests give them: objects, YAML or files, one or many in each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phalanx.api.wire import Object
from phalanx.server.formats import documents

#: An object, YAML of several lines, or the name of a file of it.
Manifest = Object | str | Path


def objects(manifest: Manifest) -> Iterator[Object]:
    """The objects of a manifest, in their order; those of a List one by one."""
    if not isinstance(manifest, dict):
        yield from documents(_text(manifest))
    elif manifest.get("kind") == "List":
        yield from manifest.get("items") or ()
    else:
        yield manifest


def _text(manifest: str | Path) -> str:
    is_yaml = isinstance(manifest, str) and "\n" in manifest
    return str(manifest) if is_yaml else Path(manifest).read_text()
