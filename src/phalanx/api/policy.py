"""PodDisruptionBudget as the scheduler and controllers read it. Partial and frozen."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from phalanx.api.meta import Condition, ObjectMeta


class PodDisruptionBudgetSpec(Struct, frozen=True, rename="camel"):
    """Which pods, and how many of them must stay or may go: a number, or a share as "30%"."""

    selector: dict[str, Any] | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class PodDisruptionBudgetStatus(Struct, frozen=True, rename="camel"):
    """What was counted, and the pods whose eviction has been granted since, with its time."""

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
