"""PodDisruptionBudget as scheduler and disruption controller read it. Partial and frozen."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from phalanx.api.meta import Condition, ObjectMeta


class PodDisruptionBudgetSpec(Struct, frozen=True, rename="camel"):
    """The selected pods, and how many must be available or may not be: a number, or "30%"."""

    selector: dict[str, Any] | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class PodDisruptionBudgetStatus(Struct, frozen=True, rename="camel"):
    """The counts of the disruption controller, and the pods whose eviction was granted since."""

    observed_generation: int = 0
    expected_pods: int = 0
    desired_healthy: int = 0
    current_healthy: int = 0
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()


class PodDisruptionBudget(Struct, frozen=True):
    """A PodDisruptionBudget."""

    metadata: ObjectMeta
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
