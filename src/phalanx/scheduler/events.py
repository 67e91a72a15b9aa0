"""What may happen in a cluster that lets a refused entity run after all.

Filters and decisions name the events that could cure them, the cache says which one took place, the
queue wakes whoever waits for it.
"""

from __future__ import annotations

from enum import StrEnum


class Event(StrEnum):
    """One kind of event. The first four concern everybody, the next three one group or pod."""

    NODE_ADDED = "a node came"
    NODE_UPDATED = "a node changed"
    POD_GONE = "a pod left its node"
    POD_PLACED = "a pod got a node, or is seen otherwise by other pods"
    GROUP_CHANGED = "the group came or changed"
    MEMBER_CHANGED = "a member came or changed"
    MEMBER_GONE = "a member went"
    SEARCH_ENDED = "a long search came to an end"


#: Events that can make or free room.
ROOM = frozenset({Event.NODE_ADDED, Event.NODE_UPDATED, Event.POD_GONE})
#: Events that can change what a node accepts.
NODES = frozenset({Event.NODE_ADDED, Event.NODE_UPDATED})
#: Events that can change whom a pod would be near.
PEERS = frozenset({*NODES, Event.POD_GONE, Event.POD_PLACED})
#: Events that can change what an entity asks for.
OWN = frozenset({Event.GROUP_CHANGED, Event.MEMBER_CHANGED, Event.MEMBER_GONE})
