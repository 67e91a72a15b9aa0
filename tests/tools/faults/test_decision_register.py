"""What is bound must have been decided, and together with what it was decided with."""

from __future__ import annotations

from phalanx.api.core import Pod, PodSpec, PodStatus
from phalanx.api.meta import Condition, Key, ObjectMeta
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import WatchEvent
from phalanx.scheduler.decision import Binding, Placed, Preempting, Victim, Waiting
from tools.faults.scheduler_instance import DecisionRegister

PREEMPTED = "PreemptionByScheduler"


class Store:
    """Pods that are there, and the register that follows them."""

    def __init__(self, *names: str) -> None:
        self.pods: ObjectCache[Pod] = ObjectCache()
        self.register = DecisionRegister(self.pods)
        self._revision = 0
        self.bind(dict.fromkeys(names, ""))

    def bind(self, homes: dict[str, str]) -> list[str]:
        for name, node in homes.items():
            self._revision += 1
            meta = ObjectMeta(name=name, uid=f"uid-{name}", resource_version=str(self._revision))
            new = Pod(meta, PodSpec(node_name=node))
            self.pods.apply(WatchEvent("MODIFIED", new, self._revision))
        return self.register.audit()

    def evict(self, *names: str) -> list[str]:
        told = PodStatus(conditions=(Condition("DisruptionTarget", "True", PREEMPTED),))
        for name in names:
            self._revision += 1
            meta = ObjectMeta(
                name=name, uid=f"uid-{name}", resource_version=str(self._revision),
                deletion_timestamp="2026-01-01T00:00:00Z",
            )  # fmt: skip
            self.pods.apply(WatchEvent("MODIFIED", Pod(meta, PodSpec(), told), self._revision))
        return self.register.audit()


def placed(**homes: str) -> Placed:
    return Placed(None, tuple(Binding(Key("", n), f"uid-{n}", on) for n, on in homes.items()))


def test_what_was_decided_together_is_bound_together() -> None:
    store = Store("a", "b")
    store.register.record_placement(placed(a="n", b="m"))
    assert store.bind({"a": "n", "b": "m"}) == []


def test_a_part_of_what_was_decided_is_not_bound_alone() -> None:
    store = Store("a", "b")
    store.register.record_placement(placed(a="n", b="m"))
    assert store.bind({"a": "n"}) == ["pod a got its node without those decided with it"]


def test_of_two_decisions_either_may_come_true() -> None:
    store = Store("a", "b")
    store.register.record_placement(placed(a="n", b="m"))
    store.register.record_placement(placed(a="n"))
    assert store.bind({"a": "n"}) == []


def test_nobody_gets_a_node_that_was_not_decided_unless_by_hand() -> None:
    store = Store("a", "b")
    store.register.record_placement(placed(a="n"))
    assert store.bind({"a": "m"}) == ["pod a got node m, which nobody decided"]
    store.register.manually_bound["uid-b"] = None
    assert store.bind({"b": "m"}) == []


def evicting(*names: str) -> Preempting:
    waiting = Waiting(None, (), 1, 0, 0, 0, frozenset())
    return Preempting(waiting, tuple(Victim(Key("", n), f"uid-{n}", "n") for n in names))


def test_those_who_were_chosen_together_make_way_together() -> None:
    store = Store("a", "b")
    store.register.record_preemption(evicting("a", "b"))
    assert store.evict("a", "b") == []


def test_who_was_not_chosen_does_not_make_way() -> None:
    store = Store("a", "b")
    store.register.record_preemption(evicting("a"))
    assert store.evict("b") == ["pod b makes way, which nobody decided"]


def test_a_part_of_those_who_were_chosen_does_not_make_way_alone() -> None:
    store = Store("a", "b")
    store.register.record_preemption(evicting("a", "b"))
    assert store.evict("a") == ["pod a makes way without those chosen with it"]
    assert store.evict("b") == [], "the other has left already"
