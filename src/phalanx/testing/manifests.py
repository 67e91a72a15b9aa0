"""Manifests as tests give them: objects, YAML or files, one or many in each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from phalanx.api.errors import BadRequest
from phalanx.api.wire import Object, Request
from phalanx.server.formats import YAML, load

#: An object, YAML of several lines, or the name of a file of it.
Manifest = Object | str | Path

_BETWEEN = re.compile(r"^---(?:[ \t].*)?$", re.MULTILINE)


def objects(manifest: Manifest) -> Iterator[Object]:
    """The objects of a manifest, in their order; those of a List one by one."""
    for found in [manifest] if isinstance(manifest, dict) else _documents(_text(manifest)):
        if found.get("kind") == "List":
            yield from found.get("items") or ()
        else:
            yield found


def _text(manifest: str | Path) -> str:
    is_yaml = isinstance(manifest, str) and "\n" in manifest
    return str(manifest) if is_yaml else Path(manifest).read_text()


def _documents(text: str) -> Iterator[Object]:
    """Read as the server reads what is posted: the same words mean the same."""
    for part in _BETWEEN.split(text):
        found = load(Request("POST", "", headers={"content-type": YAML}, body=part.encode()))
        if isinstance(found, dict):
            yield found
        elif found is not None:
            raise BadRequest(f"a manifest is an object, and {part.strip()[:40]!r} is none")
