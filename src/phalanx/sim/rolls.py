"""The roll of a gang: who has a node, who had one lately, and how many it needed lately.

Kept by `invariants.Auditor` from what the API shows. A scheduler decides on a view that is a little
late, so it may count a member that has just left, or heed a `minCount` that has just been raised;
what was true within the horizon excuses it, nothing else does.

    t=0   needs 3                   3 get nodes at t=1: well
    t=5   one of them is deleted
    t=6   needs 4                   1 gets a node at t=7: well with a horizon of 2 (it had 3 and
                                    needed 3 at t=5), too few without one
"""

from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.api.scheduling import PodGroup


class Roll:
    """One gang by name, whichever group of that name it is."""

    def __init__(self) -> None:
        #: Who has a node, and since when.
        self._members: dict[str, float] = {}
        self._left: list[float] = []
        self._needed: list[tuple[float, int]] = []
        self._missing_since = 0.0

    def group(self, group: PodGroup | None, now: float) -> None:
        """The group came, changed or went."""
        if group is None:
            self._missing_since = now
        if group is not None and (not self._needed or self._needed[-1][1] != group.quorum):
            self._needed.append((now, group.quorum))

    def member(self, pod: Pod | None, uid: str, now: float) -> None:
        """A member came, changed or went (None)."""
        if pod is not None and pod.node and not pod.metadata.deletion_timestamp:
            self._members.setdefault(uid, now)
        elif uid in self._members:
            del self._members[uid]
            self._left.append(now)

    def count(self, since: float) -> int:
        """How many have a node, or had one at some time since."""
        return len(self._members) + sum(at >= since for at in self._left)

    def lasting(self, since: float) -> int:
        """How many have a node that they had got before."""
        return sum(at < since for at in self._members.values())

    def needs(self, since: float) -> int:
        """The smallest number of members that was asked for at some time since."""
        before = [number for at, number in self._needed if at < since][-1:]
        return min([*before, *(number for at, number in self._needed if at >= since)], default=0)

    def missing(self, now: float) -> float:
        """For how long there has been no group, if there is none."""
        return now - self._missing_since
