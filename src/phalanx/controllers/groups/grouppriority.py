"""What a new PodGroup says of its priority class, before whoever makes it sends it to the server.

The server works out the priority by itself; a class that never preempts it takes only from a group
that says the same.
"""

from __future__ import annotations

from contextlib import suppress

from phalanx.api.errors import NotFound
from phalanx.api.kinds import PRIORITY_CLASS
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client

_POLICY = "preemptionPolicy"


async def take_policy(client: Client, spec: Object) -> None:
    """Add in place whom a group of its class may preempt, unless it says so already."""
    if _POLICY not in spec and (policy := (await _class(client, spec)).get(_POLICY)):
        spec[_POLICY] = policy


async def _class(client: Client, spec: Object) -> Object:
    """The class that it will be of, by name or by default.

    That there is none of its name is left for the server to say.
    """
    if name := spec.get("priorityClassName"):
        with suppress(NotFound):
            return await client.get(PRIORITY_CLASS, Key("", name))
        return {}
    classes = (await client.list(PRIORITY_CLASS)).items
    by_default = [one for one in classes if one.get("globalDefault")]
    return min(by_default, key=lambda one: int(one["value"]), default={})
