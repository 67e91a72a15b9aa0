"""Profiles: the schedulers that one process runs, each with a name and a policy.

A pod selects a profile by `spec.schedulerName`; pods of other names belong to other schedulers. All
profiles share one queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.feature_gates import (
    GANG_SCHEDULING,
    POD_GROUP_PREEMPTION_POLICY,
    WORKLOAD_AWARE_PREEMPTION,
    FeatureGates,
)
from phalanx.scheduler.backoff import DEFAULT_BACKOFF, BackOff
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy


@dataclass(frozen=True, slots=True)
class Profiles:
    """The policies by scheduler name, and the settings that all of them share."""

    policies: Mapping[str, SchedulerPolicy]
    back_off: BackOff = DEFAULT_BACKOFF
    #: Whether the members of a group are placed together; otherwise every pod is placed alone.
    groups: bool = True
    #: Whether a group's own preemptionPolicy counts; otherwise that of its pods does.
    preemption_policies: bool = True
    #: The configuration file that the profiles were read from; None without a file.
    configuration: dict[str, Any] | None = None

    def policy(self, entity: Entity) -> SchedulerPolicy:
        """The policy for an entity. Members that name different schedulers are rejected later."""
        return self.policies[entity.scheduler_name]

    @property
    def groups_preempt(self) -> bool:
        """Whether any profile preempts for groups."""
        return any(policy.groups_preempt for policy in self.policies.values())

    @property
    def without_group_preemption(self) -> Profiles:
        """The same profiles, none of which preempts for groups."""
        policies = {n: replace(p, groups_preempt=False) for n, p in self.policies.items()}
        return replace(self, policies=policies)


DEFAULT_PROFILES = Profiles({DEFAULT_SCHEDULER: DEFAULT_POLICY})


def apply_feature_gates(gates: FeatureGates, profiles: Profiles = DEFAULT_PROFILES) -> Profiles:
    """The profiles without the features that are disabled."""
    if not gates.is_enabled(WORKLOAD_AWARE_PREEMPTION):
        profiles = profiles.without_group_preemption
    return replace(
        profiles,
        groups=gates.is_enabled(GANG_SCHEDULING),
        preemption_policies=gates.is_enabled(POD_GROUP_PREEMPTION_POLICY),
    )
