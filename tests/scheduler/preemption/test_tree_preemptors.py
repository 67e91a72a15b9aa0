"""Trees of groups that preempt: the victims make room for the whole tree, in its topology."""

from __future__ import annotations

from random import Random

import pytest

from phalanx.api.core import Pod
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Preempting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.preemption.plan_search import PlanSearch, PreemptionPlan
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from phalanx.scheduler.search.solver import SolverGaveUp, Steps
from tests.scheduler.builders import composite, entity, gang, node, pod, tree
from tests.scheduler.verifier import Verifier


def build_tree(seed: int) -> tuple[ClusterObjects, Entity]:
    """A full cluster of racks in zones, and a tree of groups with keys of their own."""
    random = Random(seed)
    nodes = [
        node(f"n{i:02}", {"rack": f"r{i // 2}", "zone": f"z{i // 6}"}, cpu="4") for i in range(12)
    ]
    running: list[Pod] = []
    for place in nodes:
        free = 4
        while free:
            cpu = min(random.choice([1, 2, 3]), free)
            free -= cpu
            running.append(
                pod(
                    f"r{len(running)}", on=place.metadata.name, cpu=str(cpu), phase="Running",
                    priority=random.choice([0, 1, 2, 500]),
                )
            )  # fmt: skip
    parts = []
    for name in "xyz"[: random.randint(2, 3)]:
        size, wanted = random.randint(1, 3), random.choice(["1", "2"])
        group = gang(
            name, random.randint(1, size), priority=100, parent="t",
            topology=random.choice(["", "rack"]),
        )  # fmt: skip
        pods = [pod(f"{name}-{i}", name, cpu=wanted, priority=100) for i in range(size)]
        parts.append(entity(group, pods))
    root = composite(
        "t", random.randint(1, len(parts)), priority=100, topology=random.choice(["", "zone"])
    )
    one = tree(root, *parts)
    groups = [root, *(part.group for part in parts if part.group)]
    pods = [*running, *(member.pod for member in one.members)]
    return ClusterObjects(nodes, groups, pods), one


@pytest.mark.mostly_slow(quick_every=4)
@pytest.mark.parametrize("seed", range(12))
def test_solver_never_chooses_worse_victims_for_a_tree(seed: int) -> None:
    seen, one = build_tree(seed)
    snapshot, costs = load_state(seen).cache.snapshot(), list[tuple[int, int]]()
    for solver in (HighsSolver(), lambda program: SolverGaveUp("no")):
        decision = decide(one, snapshot, DEFAULT_POLICY, solver=solver)
        assert Verifier().violations(seen, one, decision) == []
        if isinstance(decision, Preempting):
            priorities = {p.metadata.uid: p.spec.priority for p in seen.pods}
            victims = [priorities[victim.uid] for victim in decision.victims]
            costs.append((max(victims), len(victims)))
    assert costs == sorted(costs)


def test_plan_of_the_solver_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solution that the filters do not accept counts for nothing."""
    verified: list[PreemptionPlan | None] = []
    original = PlanSearch.verify_solution

    def recorded(self: PlanSearch, *arguments: object) -> Steps[PreemptionPlan | None]:
        verified.append((yield from original(self, *arguments)))  # type: ignore[arg-type]
        return None

    monkeypatch.setattr(PlanSearch, "verify_solution", recorded)
    seen, one = build_tree(1)
    decision = decide(one, load_state(seen).cache.snapshot(), DEFAULT_POLICY, solver=HighsSolver())
    assert verified
    assert not isinstance(decision, Preempting) or not decision.optimal
