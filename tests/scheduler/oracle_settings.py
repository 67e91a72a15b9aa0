"""How pods are to be placed, as the oracle reads it: straight from a profile of the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FILTERS = [
    "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
    "PodTopologySpread", "InterPodAffinity",
]  # fmt: skip
WEIGHTS = {
    "NodeResourcesFit": 1, "NodeResourcesBalancedAllocation": 1, "ImageLocality": 1,
    "TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "InterPodAffinity": 2,
}  # fmt: skip
CPU_AND_MEMORY: list[dict[str, Any]] = [
    {"name": "cpu", "weight": 1},
    {"name": "memory", "weight": 1},
]


@dataclass
class OracleSettings:
    """One profile, as it stands in the file."""

    profile: dict[str, Any] = field(default_factory=dict)

    def filters(self) -> list[str]:
        """The filters that are asked, in order: what is taken away and named again comes last."""
        gone, again = self._names("multiPoint", "disabled"), self._names("multiPoint", "enabled")
        usual = [name for name in FILTERS if name not in gone]
        back = [name for name in again if name in gone and name in FILTERS]
        off = self._names("filter", "disabled")
        return [name for name in (*usual, *back) if name not in off]

    def weight(self, name: str) -> int:
        """What an opinion weighs, nothing if it is not asked."""
        plugins = self.profile.get("plugins", {})
        for point in ("score", "multiPoint"):
            for one in plugins.get(point, {}).get("enabled", []):
                if one["name"] == name:
                    return one.get("weight") or 1
            if {"*", name} & {*self._names(point, "disabled")}:
                return 0
        return WEIGHTS[name]

    def plugin_args(self, name: str) -> dict[str, Any]:
        """What a plugin is told."""
        configs = self.profile.get("pluginConfig", [])
        found: dict[str, Any] = next((one["args"] for one in configs if one["name"] == name), {})
        return found

    def strategy(self) -> dict[str, Any]:
        """How full nodes should be."""
        usual = {"type": "LeastAllocated"}
        found: dict[str, Any] = self.plugin_args("NodeResourcesFit").get("scoringStrategy", usual)
        return found

    def _names(self, point: str, what: str) -> list[str]:
        chosen = self.profile.get("plugins", {}).get(point, {}).get(what, [])
        return [one["name"] for one in chosen]
