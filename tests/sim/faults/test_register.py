"""What is bound must have been decided, and together with what it was decided with."""

from __future__ import annotations

from phalanx.api.core import Pod, PodSpec
from phalanx.api.meta import Key, Meta
from phalanx.client.answers import Event
from phalanx.client.cache import Cache
from phalanx.scheduler.decision import Binding, Placed
from phalanx.sim.faults.register import Register


class Store:
    """Pods that are there, and the register that follows them."""

    def __init__(self, *names: str) -> None:
        self.pods: Cache[Pod] = Cache()
        self.register = Register(self.pods)
        self._revision = 0
        self.bind(dict.fromkeys(names, ""))

    def bind(self, homes: dict[str, str]) -> list[str]:
        for name, node in homes.items():
            self._revision += 1
            meta = Meta(name=name, uid=f"uid-{name}", resource_version=str(self._revision))
            new = Pod(meta, PodSpec(node_name=node))
            self.pods.apply(Event("MODIFIED", new, self._revision))
        return self.register.audit()


def placed(**homes: str) -> Placed:
    return Placed(None, tuple(Binding(Key("", n), f"uid-{n}", on) for n, on in homes.items()))


def test_what_was_decided_together_is_bound_together() -> None:
    store = Store("a", "b")
    store.register.decide(placed(a="n", b="m"))
    assert store.bind({"a": "n", "b": "m"}) == []


def test_a_part_of_what_was_decided_is_not_bound_alone() -> None:
    store = Store("a", "b")
    store.register.decide(placed(a="n", b="m"))
    assert store.bind({"a": "n"}) == ["pod a got its node without those decided with it"]


def test_of_two_decisions_either_may_come_true() -> None:
    store = Store("a", "b")
    store.register.decide(placed(a="n", b="m"))
    store.register.decide(placed(a="n"))
    assert store.bind({"a": "n"}) == []


def test_nobody_gets_a_node_that_was_not_decided_unless_by_hand() -> None:
    store = Store("a", "b")
    store.register.decide(placed(a="n"))
    assert store.bind({"a": "m"}) == ["pod a got node m, which nobody decided"]
    store.register.strangers["uid-b"] = None
    assert store.bind({"b": "m"}) == []
