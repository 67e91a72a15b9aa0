"""Whether a server knows a kind at all: asked once, before anything relies on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from phalanx.api.errors import NotFound, ServerError
from phalanx.api.kinds import Kind
from phalanx.client.client import Client


class _Entry(Struct, frozen=True):
    name: str = ""


class _Resources(Struct, frozen=True):
    resources: tuple[_Entry, ...] = ()


async def serves(client: Client, kind: Kind) -> bool:
    """Whether discovery shows a kind in the version that we use."""
    return bool(await served(client, [kind]))


async def served(client: Client, kinds: Iterable[Kind]) -> list[Kind]:
    """Those of some kinds that discovery shows in the version that we use, in the same order."""
    kinds = tuple(kinds)
    versions = dict.fromkeys((kind.group, kind.version) for kind in kinds)
    answers = await asyncio.gather(*(_plurals(client, *version) for version in versions))
    known = dict(zip(versions, answers, strict=True))
    return [kind for kind in kinds if kind.plural in known[kind.group, kind.version]]


async def _plurals(client: Client, group: str, version: str) -> frozenset[str]:
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        found = msgspec.json.decode(await client.get_raw(path), type=_Resources)
    except NotFound:
        return frozenset()
    except msgspec.DecodeError as error:
        raise ServerError(f"what the server says of {path} cannot be read: {error}") from error
    return frozenset(entry.name for entry in found.resources)
