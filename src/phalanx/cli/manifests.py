"""Manifests: the files of `-f`, parsed into objects with their kinds. Nothing is sent anywhere.

Files are parsed as the server parses request bodies, so that the same YAML means the same. A file
that cannot be read is a usage error (exit code 2); a file with an invalid object is an error (1).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from phalanx.api.errors import ApiError
from phalanx.api.kinds import KINDS, Kind
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.server.serialization import parse_manifests

F = TypeVar("F", bound=Callable[..., Any])

STDIN = "-"
_SUFFIXES = (".yaml", ".yml", ".json")
_KINDS_BY_NAME = {(kind.api_version, kind.name): kind for kind in KINDS if "create" in kind.verbs}


class Manifest(NamedTuple):
    """An object to create, and its kind."""

    kind: Kind
    content: Object

    @property
    def key(self) -> Key:
        """Return namespace and name."""
        meta = self.content["metadata"]
        return Key(meta.get("namespace", ""), meta.get("name", ""))

    def __str__(self) -> str:
        return f"{self.kind.name} {self.key}"


def files_option(*, required: bool) -> Callable[[F], F]:
    """Add `-f`, which may be repeated."""
    return click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        required=required,
        metavar="FILE",
        help="Manifests: a file, a directory of files, or - for stdin; may be repeated.",
    )


def load_manifests(files: Iterable[str], namespace: str) -> list[Manifest]:
    """Load all objects of the files in order. `namespace` is the default namespace."""
    return [manifest for batch in load_manifest_files(files, namespace) for manifest in batch]


def load_manifest_files(files: Iterable[str], namespace: str) -> list[list[Manifest]]:
    """Load the objects file by file; files without objects are left out."""
    batches = [
        [_parse_manifest(content, namespace, name) for content in _parse_objects(text, name)]
        for file in files
        for name, text in _read_texts(file)
    ]
    if not any(batches):
        raise click.UsageError("the files of -f contain no object")
    return [batch for batch in batches if batch]


def _read_texts(file: str) -> Iterator[tuple[str, str]]:
    """Yield the name and text of a file, or of each manifest in a directory."""
    if file == STDIN:
        yield "stdin", sys.stdin.read()
        return
    path = Path(file)
    entries = sorted(path.iterdir()) if path.is_dir() else ()
    for entry in [child for child in entries if child.suffix in _SUFFIXES] or [path]:
        try:
            yield str(entry), entry.read_text()
        except OSError as error:
            raise click.UsageError(f"cannot read {entry}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise click.UsageError(f"cannot read {entry}: not a text file") from None


def _parse_objects(text: str, name: str) -> Iterator[Object]:
    try:
        yield from parse_manifests(text)
    except ApiError as error:
        raise click.ClickException(f"{name}: {error}") from None


def _parse_manifest(content: Object, namespace: str, name: str) -> Manifest:
    missing = [field for field in ("apiVersion", "kind") if not content.get(field)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise click.ClickException(
            f"{name}: not a Kubernetes object: {' and '.join(missing)} {verb} missing"
        )
    api_version, kind_name = str(content["apiVersion"]), str(content["kind"])
    kind = _KINDS_BY_NAME.get((api_version, kind_name))
    if kind is None:
        raise click.ClickException(f'{name}: unknown kind "{kind_name}" in {api_version}')
    meta = content.get("metadata")
    if not isinstance(meta, dict) or not (meta.get("name") or meta.get("generateName")):
        raise click.ClickException(f"{name}: a {kind_name} has no metadata.name")
    if kind.namespaced:
        meta.setdefault("namespace", namespace)
    return Manifest(kind, content)
