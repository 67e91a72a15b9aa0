"""A decision held against the oracle's."""

from __future__ import annotations

from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed, Waiting
from phalanx.scheduler.policy import Policy
from tests.scheduler import oracle
from tests.scheduler.builders import key
from tests.scheduler.settings import Settings
from tests.scheduler.strategies import Situation


def assert_agreed(situation: Situation, policy: Policy, settings: Settings) -> None:
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
    assert {name.name: node for name, _, node in bindings} == answer.bindings
    left = decision.leftovers if isinstance(decision, Placed) else decision.pods
    said = {one.pod.name: dict(one.refusal.counts) for one in left if one.refusal}
    for name, allowed in answer.refusals.items():
        assert said[name] in allowed
