"""The scheduler settings as the oracle reads them, straight from a profile of the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FILTERS = [
    "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
    "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone",
    "PodTopologySpread", "InterPodAffinity", "DynamicResources",
]  # fmt: skip
WEIGHTS = {
    "NodeResourcesFit": 1, "NodeResourcesBalancedAllocation": 1, "ImageLocality": 1,
    "TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "InterPodAffinity": 2,
    "DynamicResources": 2, "VolumeBinding": 1,
    "ExtendedResourcePacking": 2, "ExtendedResourceAvoidance": 3,
}  # fmt: skip
CPU_AND_MEMORY: list[dict[str, Any]] = [
    {"name": "cpu", "weight": 1},
    {"name": "memory", "weight": 1},
]


@dataclass
class OracleSettings:
    """One profile of the configuration file."""

    profile: dict[str, Any] = field(default_factory=dict)

    def filters(self) -> list[str]:
        """Return the filters in order; a filter that is disabled and enabled again comes last."""
        disabled = self._names("multiPoint", "disabled")
        default = [name for name in FILTERS if name not in disabled]
        enabled = self._names("multiPoint", "enabled")
        restored = [name for name in enabled if name in disabled and name in FILTERS]
        without = self._names("filter", "disabled")
        return [name for name in (*default, *restored) if name not in without]

    def weight(self, name: str) -> int:
        """Return the weight of a score; 0 if it is disabled."""
        plugins = self.profile.get("plugins", {})
        for point in ("score", "multiPoint"):
            for one in plugins.get(point, {}).get("enabled", []):
                if one["name"] == name:
                    return one.get("weight") or 1
            if {"*", name} & {*self._names(point, "disabled")}:
                return 0
        return WEIGHTS[name]

    def plugin_args(self, name: str) -> dict[str, Any]:
        """Return the arguments of a plugin."""
        configs = self.profile.get("pluginConfig", [])
        found: dict[str, Any] = next((one["args"] for one in configs if one["name"] == name), {})
        return found

    def strategy(self) -> dict[str, Any]:
        """Return the scoring strategy of NodeResourcesFit."""
        default = {"type": "LeastAllocated"}
        found: dict[str, Any] = self.plugin_args("NodeResourcesFit").get("scoringStrategy", default)
        return found

    def packs(self) -> bool:
        """Whether pods are packed by extended resources: NodeResourcesFit does not name any."""
        names = self.strategy().get("resources") or CPU_AND_MEMORY
        plain = [(one["name"], one.get("weight") or 1) for one in names]
        is_default = plain == [("cpu", 1), ("memory", 1)]
        return is_default and bool(self.weight("ExtendedResourcePacking"))

    def _names(self, point: str, what: str) -> list[str]:
        chosen = self.profile.get("plugins", {}).get(point, {}).get(what, [])
        return [one["name"] for one in chosen]
