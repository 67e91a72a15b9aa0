"""Settings of a test's control plane: the arguments of `@pytest.mark.phalanx`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from phalanx.api.feature_gates import FeatureGates, resolve_gates
from phalanx.cli.options import COMPONENTS


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a control plane. Raises ValueError for an unknown name.

    `nodes` is the number of nodes at the start; `room` is the capacity of each, on top of the
    default. `gates` switch feature gates. `without` leaves out components: "scheduler",
    "controllers", or "nodes" (Node objects exist, but nothing runs their pods). `invariants` says
    whether the cluster's invariants are checked after the test. With `virtual` time all randomness
    comes from the `seed`.
    """

    nodes: int = 0
    room: Mapping[str, str | int] = field(default_factory=dict)
    gates: Mapping[str, bool] = field(default_factory=dict)
    without: Collection[str] = ()
    invariants: bool = True
    virtual: bool = False
    seed: int = 1

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Settings:
        """Create settings from keyword arguments of markers."""
        names = [setting.name for setting in fields(cls)]
        for name in arguments:
            if name not in names:
                raise ValueError(f'unknown setting "{name}"; available: {", ".join(names)}')
        return cls(**arguments)

    def __post_init__(self) -> None:
        for name in self.without:
            if name not in COMPONENTS:
                raise ValueError(f'unknown component "{name}"; available: {", ".join(COMPONENTS)}')
        resolve_gates(self.gates)

    @property
    def feature_gates(self) -> FeatureGates:
        """Return the feature gates with the settings applied."""
        return resolve_gates(self.gates)
