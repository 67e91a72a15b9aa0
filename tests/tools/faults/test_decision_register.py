"""Every bind and eviction must have been decided, together with the rest of its decision."""

from __future__ import annotations

from phalanx.api.core import Pod, PodSpec, PodStatus
from phalanx.api.meta import Condition, Key, ObjectMeta
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import WatchEvent
from phalanx.scheduler.decision import Binding, Placed, Preempting, Victim, Waiting
from tools.faults.scheduler_instance import DecisionRegister

PREEMPTED = "PreemptionByScheduler"


class AuditedPods:
    """Pods in a cache, and the register that audits them."""

    def __init__(self, *names: str) -> None:
        self.pods: ObjectCache[Pod] = ObjectCache()
        self.register = DecisionRegister(self.pods)
        self._revision = 0
        self.bind(dict.fromkeys(names, ""))

    def bind(self, nodes_by_pod: dict[str, str]) -> list[str]:
        for name, node in nodes_by_pod.items():
            self._revision += 1
            metadata = ObjectMeta(
                name=name, uid=f"uid-{name}", resource_version=str(self._revision)
            )
            new = Pod(metadata, PodSpec(node_name=node))
            self.pods.apply(WatchEvent("MODIFIED", new, self._revision))
        return self.register.audit()

    def evict(self, *names: str) -> list[str]:
        status = PodStatus(conditions=(Condition("DisruptionTarget", "True", PREEMPTED),))
        for name in names:
            self._revision += 1
            metadata = ObjectMeta(
                name=name, uid=f"uid-{name}", resource_version=str(self._revision),
                deletion_timestamp="2026-01-01T00:00:00Z",
            )  # fmt: skip
            self.pods.apply(
                WatchEvent("MODIFIED", Pod(metadata, PodSpec(), status), self._revision)
            )
        return self.register.audit()


def placement(**nodes_by_pod: str) -> Placed:
    return Placed(
        None, tuple(Binding(Key("", n), f"uid-{n}", node) for n, node in nodes_by_pod.items())
    )


def test_complete_bind_of_a_decision_is_accepted() -> None:
    audited = AuditedPods("a", "b")
    audited.register.record_placement(placement(a="n", b="m"))
    assert audited.bind({"a": "n", "b": "m"}) == []


def test_partial_bind_of_a_decision_is_found() -> None:
    audited = AuditedPods("a", "b")
    audited.register.record_placement(placement(a="n", b="m"))
    assert audited.bind({"a": "n"}) == ["pod a got its node without the other pods of its decision"]


def test_either_of_two_decisions_may_be_bound() -> None:
    audited = AuditedPods("a", "b")
    audited.register.record_placement(placement(a="n", b="m"))
    audited.register.record_placement(placement(a="n"))
    assert audited.bind({"a": "n"}) == []


def test_bind_without_a_decision_is_found_unless_it_is_manual() -> None:
    audited = AuditedPods("a", "b")
    audited.register.record_placement(placement(a="n"))
    assert audited.bind({"a": "m"}) == ["pod a got node m, without a decision"]
    audited.register.manually_bound["uid-b"] = None
    assert audited.bind({"b": "m"}) == []


def preemption(*names: str) -> Preempting:
    rejection = Waiting(None, (), 1, 0, 0, 0, frozenset())
    return Preempting(rejection, tuple(Victim(Key("", n), f"uid-{n}", "n") for n in names))


def test_complete_eviction_of_chosen_victims_is_accepted() -> None:
    audited = AuditedPods("a", "b")
    audited.register.record_preemption(preemption("a", "b"))
    assert audited.evict("a", "b") == []


def test_eviction_of_a_pod_that_was_not_chosen_is_found() -> None:
    audited = AuditedPods("a", "b")
    audited.register.record_preemption(preemption("a"))
    assert audited.evict("b") == ["pod b is evicted without a decision"]


def test_partial_eviction_of_chosen_victims_is_found() -> None:
    audited = AuditedPods("a", "b")
    audited.register.record_preemption(preemption("a", "b"))
    assert audited.evict("a") == ["pod a is evicted without the other victims of its decision"]
    assert audited.evict("b") == [], "the other victim has been evicted already"
