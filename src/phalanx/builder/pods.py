"""What a group of pods has from the template of its pods: their priority, and where that stands."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.api.wire import Object
from phalanx.builder.config import Basic, Gang, SchedulingConfig

#: What pods and groups of pods must have in common, by its name in both.
_SHARED = ("priorityClassName", "preemptionPolicy")


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """The template of some pods, and its path in the user's object."""

    value: Object
    path: str

    @property
    def spec(self) -> Object:
        """The spec of the pods."""
        return self.value.get("spec") or {}

    @property
    def fields(self) -> dict[str, str]:
        """Where that stands which a group has from its pods."""
        return {name: f"{self.path}.spec.{name}" for name in _SHARED}

    def default(self, policy: Basic | Gang) -> SchedulingConfig:
        """The default of a group of these pods."""
        return SchedulingConfig(
            policy=policy,
            priority_class_name=self.spec.get("priorityClassName", ""),
            preemption_policy=self.spec.get("preemptionPolicy", ""),
        )
