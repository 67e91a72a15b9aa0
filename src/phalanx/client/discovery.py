"""Discovery: every resource that an API server serves, custom and aggregated ones included.

Reads the aggregated discovery documents of `/api` and `/apis`. `served_kinds` of `client.py`
answers the other question: which of the kinds that we know are served in the version that we use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import Struct

from phalanx.api.errors import ServerError
from phalanx.api.kinds import Kind
from phalanx.client.client import Client

_ACCEPT = {"accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}


class ServedResource(NamedTuple):
    """A resource: its kind in the preferred version, and every API version that serves it."""

    kind: Kind
    api_versions: tuple[str, ...]


class Discovery(NamedTuple):
    """The resources of a server. Incomplete if an aggregated server did not answer it."""

    resources: tuple[ServedResource, ...]
    is_complete: bool


async def discover_resources(client: Client) -> Discovery:
    """Return all resources that a server serves, the preferred version of each group first."""
    kinds: dict[tuple[str, str], list[Kind]] = {}
    is_complete = True
    for path in ("/api", "/apis"):
        body = await client.get_raw(path, _ACCEPT)
        try:
            groups = msgspec.json.decode(body, type=_GroupList).items
        except msgspec.DecodeError as error:
            raise ServerError(f"the discovery document {path} cannot be read: {error}") from error
        for group in groups:
            for kind in _group_kinds(group):
                kinds.setdefault((kind.group, kind.plural), []).append(kind)
            is_complete &= all(version.freshness != "Stale" for version in group.versions)
    resources = [
        ServedResource(versions[0], tuple(kind.api_version for kind in versions))
        for versions in kinds.values()
    ]
    return Discovery(tuple(resources), is_complete)


class _ResponseKind(Struct, frozen=True):
    kind: str = ""


class _Resource(Struct, frozen=True, rename="camel"):
    resource: str
    scope: str
    verbs: tuple[str, ...] = ()
    response_kind: _ResponseKind | None = None


class _Version(Struct, frozen=True):
    version: str
    resources: tuple[_Resource, ...] = ()
    freshness: str = ""


class _GroupMeta(Struct, frozen=True):
    name: str = ""


class _Group(Struct, frozen=True):
    metadata: _GroupMeta = _GroupMeta()
    versions: tuple[_Version, ...] = ()


class _GroupList(Struct, frozen=True):
    # Required: a server without aggregated discovery answers with another document.
    items: tuple[_Group, ...]


def _group_kinds(group: _Group) -> Iterator[Kind]:
    for version in group.versions:
        for row in version.resources:
            # A resource without a kind of its own has subresources only.
            if row.response_kind is not None and row.response_kind.kind:
                yield Kind(
                    group.metadata.name,
                    version.version,
                    row.response_kind.kind,
                    plural=row.resource,
                    schema="",
                    namespaced=row.scope == "Namespaced",
                    verbs=row.verbs,
                )
