"""Profiles: the schedulers that one process is. Each has a name and a policy; all share a queue.

A pod says by its `schedulerName` which of them is to place it; pods of any other name are another
scheduler's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.gates import (
    GANG_SCHEDULING,
    PREEMPTION_POLICY,
    WORKLOAD_AWARE_PREEMPTION,
    Gates,
)
from phalanx.scheduler.backoff import USUAL, BackOff
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT, Policy


@dataclass(frozen=True, slots=True)
class Profiles:
    """The policies by name, and what they have in common."""

    policies: Mapping[str, Policy]
    back_off: BackOff = USUAL
    #: Whether the members of a group are placed together; else every pod is on its own.
    groups: bool = True
    #: Whether a group says itself if others may be evicted for it; else its pods do, all the same.
    preemption_policies: bool = True
    #: The configuration that they were read from, if from any.
    said: dict[str, Any] | None = None

    def policy(self, entity: Entity) -> Policy:
        """The policy for an entity; members that name different ones are refused by any."""
        return self.policies[entity.scheduler]

    @property
    def groups_preempt(self) -> bool:
        """Whether any of them evicts anybody for a group."""
        return any(policy.groups_preempt for policy in self.policies.values())

    @property
    def sparing(self) -> Profiles:
        """The same, as if none of them did."""
        policies = {n: replace(p, groups_preempt=False) for n, p in self.policies.items()}
        return replace(self, policies=policies)


DEFAULT_PROFILES = Profiles({DEFAULT_SCHEDULER: DEFAULT})


def by_gates(gates: Gates, profiles: Profiles = DEFAULT_PROFILES) -> Profiles:
    """The same without what is switched off."""
    return replace(
        profiles if gates.is_on(WORKLOAD_AWARE_PREEMPTION) else profiles.sparing,
        groups=gates.is_on(GANG_SCHEDULING),
        preemption_policies=gates.is_on(PREEMPTION_POLICY),
    )
