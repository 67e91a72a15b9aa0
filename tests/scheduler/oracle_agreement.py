"""Compares a decision with that of the oracle."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Binding, Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import SchedulerPolicy
from tests.scheduler import oracle
from tests.scheduler.builders import key
from tests.scheduler.mutual_affinity import MutualAffinity
from tests.scheduler.oracle_cluster import OracleCluster
from tests.scheduler.oracle_settings import OracleSettings
from tests.scheduler.strategies import Situation


def assert_matches_oracle(
    situation: Situation, policy: SchedulerPolicy, settings: OracleSettings
) -> None:
    """Assert that the decision equals placing one pod at a time with the oracle."""
    decision = decide(situation.entity, situation.cache().snapshot(), policy)
    members = [one for one in situation.running if one.group == key("g")]
    live = sum(not one.metadata.deletion_timestamp for one in members)
    scheduled = live if situation.entity.group else 0
    oracle_cluster = situation.oracle_cluster()
    oracle_cluster.settings = settings
    answer = oracle.place(situation.entity, oracle_cluster, scheduled)
    assert isinstance(decision, Placed | Waiting)
    bindings = decision.bindings if isinstance(decision, Placed) else ()
    if bindings and not answer.bindings:
        # Greedy placement fails here, but the search found a placement.
        assert scheduled + len(bindings) >= situation.entity.quorum
        fresh = situation.oracle_cluster()
        fresh.settings = settings
        assert_bindings_allowed(bindings, situation.entity, fresh)
        return
    assert {name.name: node for name, _, node in bindings} == answer.bindings
    unplaced = decision.leftovers if isinstance(decision, Placed) else decision.pods
    counts = {one.pod.name: dict(one.refusal.counts) for one in unplaced if one.refusal}
    for name, allowed in answer.refusals.items():
        assert counts[name] in allowed


def assert_bindings_allowed(
    bindings: Iterable[Binding], entity: Entity, cluster: OracleCluster
) -> None:
    """Assert that the filters allow the bindings, one after the other.

    Pods that require each other must have each other when all are bound.
    """
    pods = {member.pod.metadata.uid: member.pod for member in entity.members}
    affinity = MutualAffinity(pods.values(), cluster)
    for _, uid, node in bindings:
        machine = cluster.nodes[node]
        assert affinity.refusals(pods[uid], machine) == []
        machine.add(pods.pop(uid))
    assert affinity.unmet_pods() == []
