"""Manifests: the files of `-f`, parsed into objects with their kinds. Nothing is sent anywhere.

Files are parsed as the server parses request bodies, so that the same YAML means the same, and as
strictly as by kubectl: an unknown field or a duplicate key is an error. A file that cannot be read
is a usage error (exit code 2); a file with an invalid object is an error (1).
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from phalanx.api.conversion.alias_resolution import resolve_aliases
from phalanx.api.errors import ApiError
from phalanx.api.kinds import KINDS, Kind
from phalanx.api.meta import Key
from phalanx.api.normalization import Malformed
from phalanx.api.schema import schema
from phalanx.api.wire import JSON, Object
from phalanx.api.workload_sources import (
    CUSTOM_COMPOSITE_POD_GROUP,
    CUSTOM_POD_GROUP,
    CUSTOM_WORKLOAD,
)
from phalanx.server.serialization import parse_manifests

F = TypeVar("F", bound=Callable[..., Any])

STDIN = "-"
_SUFFIXES = (".yaml", ".yml", ".json")
#: The kinds of our server, then our custom resources, which other servers have.
_KINDS_BY_NAME = {
    (kind.api_version, kind.name): kind
    for kind in (*KINDS, CUSTOM_WORKLOAD, CUSTOM_COMPOSITE_POD_GROUP, CUSTOM_POD_GROUP)
    if "create" in kind.verbs
}


def find_kind(api_version: str, name: str) -> Kind:
    """Return a kind that our server serves. Raises LookupError if it does not."""
    return _KINDS_BY_NAME[api_version, name]


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
    """Load all objects of the files in order. `namespace` is the default namespace.

    Without a namespace, objects that name none have none; see `set_default_namespace`.
    """
    return [manifest for batch in load_manifest_files(files, namespace) for manifest in batch]


def set_default_namespace(manifests: Iterable[Manifest], namespace: str) -> None:
    """Put the objects that name no namespace into this one."""
    for manifest in manifests:
        if manifest.kind.namespaced:
            manifest.content["metadata"].setdefault("namespace", namespace)


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
    path, entries = Path(file), [Path(file)]
    if path.is_dir():
        entries = sorted(child for child in path.iterdir() if child.suffix in _SUFFIXES)
        if not entries:
            suffixes = ", ".join(f"*{suffix}" for suffix in _SUFFIXES)
            raise click.UsageError(f"the directory {path} contains no manifest ({suffixes})")
    for entry in entries:
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
        # Kubernetes' words before the place tell users nothing.
        text = str(error).replace("error converting YAML to JSON: yaml: ", "invalid YAML: ")
        raise click.ClickException(f"{name}: {text}") from None


def _parse_manifest(content: Object, namespace: str, name: str) -> Manifest:
    missing = [field for field in ("apiVersion", "kind") if not content.get(field)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise click.ClickException(
            f"{name}: not a Kubernetes object: {' and '.join(missing)} {verb} missing"
        )
    api_version, kind_name = content["apiVersion"], content["kind"]
    if not isinstance(api_version, str) or not isinstance(kind_name, str):
        raise click.ClickException(
            f"{name}: not a Kubernetes object: apiVersion and kind must be strings"
        )
    kind = _KINDS_BY_NAME.get((api_version, kind_name))
    if kind is None:
        versions: dict[str, str] = {}
        for version, known in _KINDS_BY_NAME:
            versions.setdefault(known, version)
        near = get_close_matches(kind_name, versions, n=1)
        hint = f"; did you mean {near[0]} in {versions[near[0]]}?" if near else ""
        raise click.ClickException(f'{name}: unknown kind "{kind_name}" in {api_version}{hint}')
    meta = content.get("metadata")
    if not isinstance(meta, dict) or not (meta.get("name") or meta.get("generateName")):
        raise click.ClickException(f"{name}: a {kind_name} has no metadata.name")
    problems = _find_field_errors(kind, content)
    if problems:
        title = f'{kind_name} "{meta.get("name") or meta["generateName"]}"'
        raise click.ClickException(f"{name}: {title}: {', '.join(problems)}")
    manifest = Manifest(kind, content)
    if namespace:
        set_default_namespace([manifest], namespace)
    return manifest


def _find_field_errors(kind: Kind, content: Object) -> list[str]:
    """The unknown fields and wrong types that a server with fieldValidation=Strict would report.

    The object itself stays as it is in the file: the server resolves aliases with warnings.
    """
    obj = copy.deepcopy({k: v for k, v in content.items() if k not in ("apiVersion", "kind")})
    resolved = resolve_aliases(kind.schema, JSON, obj)
    if resolved and resolved.causes:
        # The server explains these causes.
        return []
    try:
        report = schema(kind.schema).normalize(resolved.value if resolved else obj)
    except Malformed as error:
        return [error.plain_message]
    return [f'unknown field "{path}"' for path in report.unknown_fields]
