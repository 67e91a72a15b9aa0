"""What a new PodGroup says of its priority class, before whoever makes it sends it to the server.

The server works out the priority by itself; a class that never preempts it takes only from a group
that says the same.
"""

from __future__ import annotations

from phalanx.api.errors import NotFound
from phalanx.api.kinds import PRIORITY_CLASS
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client


async def take_policy(client: Client, spec: Object) -> None:
    """Add in place whom a group of its class may preempt, unless it says so already.

    That there is no such class is left for the server to say.
    """
    if not spec.get("priorityClassName") or "preemptionPolicy" in spec:
        return
    try:
        found = await client.get(PRIORITY_CLASS, Key("", spec["priorityClassName"]))
    except NotFound:
        return
    if policy := found.get("preemptionPolicy"):
        spec["preemptionPolicy"] = policy
