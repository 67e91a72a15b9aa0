"""What a test asks of its control plane: the arguments of `@pytest.mark.phalanx`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from phalanx.api.feature_gates import FeatureGates, resolve_gates
from phalanx.cli.options import COMPONENTS


@dataclass(frozen=True, slots=True)
class Settings:
    """A control plane as a test wants it. Raises ValueError for what there is not.

    `nodes` are there from the start, each with this `room`, or with what is usual. `gates` switch
    features on or off, `without` leaves parts out: scheduler, controllers, or nodes, whose Node
    objects then come all the same but have nobody who runs pods. `invariants` says whether the
    cluster is judged at the end. Time may be `virtual`; all lots are then drawn from the `seed`.
    """

    nodes: int = 0
    room: Mapping[str, str | int] = field(default_factory=dict)
    gates: Mapping[str, bool] = field(default_factory=dict)
    without: Collection[str] = ()
    invariants: bool = True
    virtual: bool = False
    seed: int = 1

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Settings:
        """The settings that somebody gives by their names."""
        names = [one.name for one in fields(cls)]
        for name in said:
            if name not in names:
                raise ValueError(f"{name!r} is none of {', '.join(names)}")
        return cls(**said)

    def __post_init__(self) -> None:
        unknown = [part for part in self.without if part not in COMPONENTS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(COMPONENTS)}")
        resolve_gates(self.gates)

    @property
    def switched(self) -> FeatureGates:
        """The gates that are on."""
        return resolve_gates(self.gates)
