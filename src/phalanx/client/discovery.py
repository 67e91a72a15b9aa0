"""Whether a server knows a kind at all: asked once, before anything relies on it."""

from __future__ import annotations

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
    path = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
    try:
        found = msgspec.json.decode(await client.get_raw(path), type=_Resources)
    except NotFound:
        return False
    except msgspec.DecodeError as error:
        raise ServerError(f"what the server says of {path} cannot be read: {error}") from error
    return any(entry.name == kind.plural for entry in found.resources)
