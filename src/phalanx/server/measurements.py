"""What the kubelets of process nodes measured last of each pod: in memory, until the server stops.

Sent by them (`figures.report`), shown by `kubectl top`. Bounded: of too many pods those go first
that were measured longest ago. Never on disk and never in the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.api.resources import Amounts

#: Pods of which something is kept.
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Measurement:
    """What each container of a pod uses, up to a moment, CPU on average over a window."""

    moment: float
    window: str
    containers: Mapping[str, Amounts]


class Measurements:
    """The last measurement of each pod, by its uid."""

    def __init__(self, most: int = MOST) -> None:
        self._last: OrderedDict[str, Measurement] = OrderedDict()
        self._most = most

    def keep(self, uid: str, measured: Measurement) -> None:
        """Have it take the place of the one before."""
        self._last[uid] = measured
        self._last.move_to_end(uid)
        if len(self._last) > self._most:
            self._last.popitem(last=False)

    def of(self, uid: str, *, since: float) -> Measurement | None:
        """The last one of a pod, unless it is older."""
        found = self._last.get(uid)
        return found if found and found.moment >= since else None
