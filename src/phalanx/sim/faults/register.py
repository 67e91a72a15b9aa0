"""Every placement that any scheduler ever decided, held against every bind that took place.

A pod gets the node that somebody decided on, and gets it together with all that was decided with
it; or it was bound by hand. Hears of decisions from the schedulers and of binds from the store.
"""

from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.client.cache import Cache
from phalanx.scheduler.decision import Placed
from phalanx.sim.laws import is_bound_now

#: A pod by its uid, and a node.
_Pair = tuple[str, str]


class Register:
    """What was decided, and what was bound since the last look. `strangers` are bound by hand."""

    def __init__(self, pods: Cache[Pod]) -> None:
        self.strangers: dict[str, None] = {}
        self._decided: dict[_Pair, list[frozenset[_Pair]]] = {}
        self._bound: dict[_Pair, Pod] = {}
        pods.subscribe(self._changed)

    def decide(self, placed: Placed) -> None:
        """These pods may be bound to these nodes, all of them or none."""
        together = frozenset((uid, node) for _, uid, node in placed.bindings)
        for pair in sorted(together):
            self._decided.setdefault(pair, []).append(together)

    def audit(self) -> list[str]:
        """What is wrong about the binds since the last time."""
        bound, self._bound = self._bound, {}
        wrong = []
        for (uid, node), pod in bound.items():
            if uid in self.strangers:
                continue
            decisions = self._decided.get((uid, node), [])
            if not decisions:
                wrong.append(f"pod {pod.metadata.key} got node {node}, which nobody decided")
            elif not any(together <= bound.keys() for together in decisions):
                wrong.append(f"pod {pod.metadata.key} got its node without those decided with it")
        return wrong

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and is_bound_now(old, new):
            self._bound[new.metadata.uid, new.spec.node_name] = new
