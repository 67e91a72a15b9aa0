"""How high priorities go: those of users and groups up to a limit, those of the system beyond it.

The classes of the system are always there, by these names and values alone; pods may be of one, but
no group of pods can.
"""

from __future__ import annotations

from collections.abc import Mapping

#: The highest priority of a group, and of a class that is a user's.
HIGHEST_PRIORITY = 1_000_000_000
#: Classes for what the cluster itself needs, and their values.
SYSTEM_CLASSES: Mapping[str, int] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
