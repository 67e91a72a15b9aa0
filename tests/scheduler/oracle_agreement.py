"""A decision held against the oracle's."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Binding, Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import SchedulerPolicy
from tests.scheduler import oracle
from tests.scheduler.builders import key
from tests.scheduler.oracle_cluster import OracleCluster
from tests.scheduler.oracle_settings import OracleSettings
from tests.scheduler.strategies import Situation


def assert_matches_oracle(
    situation: Situation, policy: SchedulerPolicy, settings: OracleSettings
) -> None:
    """What is decided by the policy is what comes of placing one pod at a time by the settings."""
    decision = decide(situation.entity, situation.cache().snapshot(), policy)
    members = [one for one in situation.running if one.group == key("g")]
    living = sum(not one.metadata.deletion_timestamp for one in members)
    scheduled = living if situation.entity.group else 0
    world = situation.world()
    world.settings = settings
    answer = oracle.place(situation.entity, world, scheduled)
    assert isinstance(decision, Placed | Waiting)
    bindings = decision.bindings if isinstance(decision, Placed) else ()
    if bindings and not answer.bindings:
        # Placing one at a time is not enough here, but there is another way.
        assert scheduled + len(bindings) >= situation.entity.quorum
        fresh = situation.world()
        fresh.settings = settings
        assert_bindings_allowed(bindings, situation.entity, fresh)
        return
    assert {name.name: node for name, _, node in bindings} == answer.bindings
    left = decision.leftovers if isinstance(decision, Placed) else decision.pods
    said = {one.pod.name: dict(one.refusal.counts) for one in left if one.refusal}
    for name, allowed in answer.refusals.items():
        assert said[name] in allowed


def assert_bindings_allowed(
    bindings: Iterable[Binding], entity: Entity, cluster: OracleCluster
) -> None:
    """Every pod may be where it is put, one after the other."""
    pods = {member.pod.metadata.uid: member.pod for member in entity.members}
    for _, uid, node in bindings:
        machine = cluster.nodes[node]
        assert oracle.refusals(pods[uid], machine, cluster) == []
        machine.add(pods.pop(uid))
