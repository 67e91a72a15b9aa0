"""Manifests: the files of `-f`, read into objects, each with its kind. Nothing is sent anywhere.

What cannot be read is a sentence and exit code 2 or 1; it is read as the server reads what is
posted, so that the same words mean the same.
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
    """An object that somebody wants, and of which kind it is."""

    kind: Kind
    content: Object

    @property
    def key(self) -> Key:
        """Namespace and name."""
        meta = self.content["metadata"]
        return Key(meta.get("namespace", ""), meta.get("name", ""))

    def __str__(self) -> str:
        return f"{self.kind.name} {self.key}"


def files_option(*, required: bool) -> Callable[[F], F]:
    """`-f`, which may be given again."""
    return click.option(
        "-f", "--filename", "files", multiple=True, required=required, metavar="FILE",
        help="Manifests: a file, a folder of them, or - for what is piped in; may be given again.",
    )  # fmt: skip


def load_manifests(files: Iterable[str], namespace: str) -> list[Manifest]:
    """All objects of the files, in order; those that name no namespace are in this one."""
    return [one for batch in load_manifest_files(files, namespace) for one in batch]


def load_manifest_files(files: Iterable[str], namespace: str) -> list[list[Manifest]]:
    """The same, file by file; those without an object are left out."""
    found = [
        [_parse_manifest(content, namespace, name) for content in _parse_objects(text, name)]
        for file in files
        for name, text in _read_texts(file)
    ]
    if not any(found):
        raise click.UsageError("there is no object in what -f names")
    return [batch for batch in found if batch]


def _read_texts(file: str) -> Iterator[tuple[str, str]]:
    if file == STDIN:
        yield "what is piped in", sys.stdin.read()
        return
    path = Path(file)
    inside = sorted(path.iterdir()) if path.is_dir() else ()
    for one in [one for one in inside if one.suffix in _SUFFIXES] or [path]:
        try:
            yield str(one), one.read_text()
        except OSError as error:
            raise click.UsageError(f"cannot read {one}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise click.UsageError(f"cannot read {one}: it is no text") from None


def _parse_objects(text: str, name: str) -> Iterator[Object]:
    try:
        yield from parse_manifests(text)
    except ApiError as error:
        raise click.ClickException(f"{name}: {error}") from None


def _parse_manifest(content: Object, namespace: str, name: str) -> Manifest:
    version, title = content.get("apiVersion"), content.get("kind")
    kind = _KINDS_BY_NAME.get((str(version), str(title)))
    if kind is None:
        raise click.ClickException(f"{name}: there is no kind {title} in {version} here")
    meta = content.get("metadata")
    if not isinstance(meta, dict) or not (meta.get("name") or meta.get("generateName")):
        raise click.ClickException(f"{name}: an object of kind {title} has no metadata.name")
    if kind.namespaced:
        meta.setdefault("namespace", namespace)
    return Manifest(kind, content)
