"""Every placement that any scheduler ever decided, held against every bind that took place.

A pod gets the node that somebody decided on, and gets it together with all that was decided with
it; or it was bound by hand. Whoever makes way was chosen to, and all who were chosen with him are
gone by then or make way too, namespace by namespace. Hears of decisions from the schedulers and of
binds and evictions from the store.
"""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.client.cache import Cache
from phalanx.scheduler.decision import Placed, Preempting
from phalanx.sim.laws import is_bound_now, makes_way_now

#: A pod by its uid, and a node.
_Pair = tuple[str, str]


class Register:
    """What was decided, and what was bound since the last look. `strangers` are bound by hand."""

    def __init__(self, pods: Cache[Pod]) -> None:
        self.strangers: dict[str, None] = {}
        self._decided: dict[_Pair, list[frozenset[_Pair]]] = {}
        self._bound: dict[_Pair, Pod] = {}
        self._chosen: dict[str, list[list[tuple[Key, str]]]] = {}
        self._evicted: dict[str, Pod] = {}
        self._pods = pods
        pods.subscribe(self._changed)

    def decide(self, placed: Placed) -> None:
        """These pods may be bound to these nodes, all of them or none."""
        together = frozenset((uid, node) for _, uid, node in placed.bindings)
        for pair in sorted(together):
            self._decided.setdefault(pair, []).append(together)

    def choose(self, preempting: Preempting) -> None:
        """These pods may be evicted, all of a namespace or none."""
        together = [(victim.pod, victim.uid) for victim in preempting.victims]
        for victim in preempting.victims:
            self._chosen.setdefault(victim.uid, []).append(together)

    def audit(self) -> list[str]:
        """What is wrong about the binds and evictions since the last time."""
        return [*self._misbound(), *self._misled()]

    def _misled(self) -> Iterator[str]:
        evicted, self._evicted = self._evicted, {}
        for uid, pod in evicted.items():
            choices = self._chosen.get(uid, [])
            if not choices:
                yield f"pod {pod.metadata.key} makes way, which nobody decided"
            elif all(any(self._stays(pod, *one) for one in chosen) for chosen in choices):
                yield f"pod {pod.metadata.key} makes way without those chosen with it"

    def _stays(self, pod: Pod, key: Key, uid: str) -> bool:
        """Whether somebody stays who was chosen with a pod."""
        other = self._pods.get(key)
        if other is None or other.metadata.uid != uid or key.namespace != pod.metadata.namespace:
            return False
        return not other.metadata.deletion_timestamp

    def _misbound(self) -> list[str]:
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
        if new is not None and makes_way_now(old, new):
            self._evicted[new.metadata.uid] = new
