"""The claims that pending pods name are forgotten with the pods."""

from __future__ import annotations

from msgspec.structs import replace as but

from phalanx.api.core import PodResourceClaim
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.scheduler.queue.decision_log import PodObserved
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from tests.scheduler.builders import pod


def test_claims_of_a_pod_that_failed_before_it_had_a_node_are_forgotten() -> None:
    """The pod garbage collector fails terminating pods without a node, then deletes them."""
    state, made = SchedulerState(DEFAULT_PROFILES), pod("a", cpu="1")
    claims = (PodResourceClaim("gpu", resource_claim_name="a-gpu"),)
    pending = but(made, spec=but(made.spec, resource_claims=claims))
    key = made.metadata.key
    state.observe(PodObserved(0.0, key, pending))
    assert key in state._device_claims
    state.observe(PodObserved(1.0, key, but(pending, status=but(made.status, phase="Failed"))))
    assert key not in state._device_claims
