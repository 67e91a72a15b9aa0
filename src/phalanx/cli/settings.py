"""What `phalanx up` was asked for, as a value: read by the server's process and by the crew's.

Light on purpose: it is loaded before the two part, and each loads what it needs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.api.gates import Gates
from phalanx.cli.options import state_folder
from phalanx.controllers.nodes.nodes import SimulatedNode
from phalanx.controllers.nodes.stages import Rule

if TYPE_CHECKING:
    from phalanx.scheduler.settings.profiles import Profiles

MEMORY = ":memory:"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line asks for; without `profiles` pods are placed as usual."""

    host: str
    port: int
    names: tuple[str, ...]
    data: str
    store: str
    kubeconfig: Path | None
    nodes: list[SimulatedNode]
    without: frozenset[str]
    gates: Gates
    profiles: Profiles | None
    decisions: Path | None
    basic_workloads: bool
    audit: str
    stages: Sequence[Rule]
    processes: bool
    programs: Path | None

    def home(self) -> Path:
        """Where it is looked for: in its folder, or in the user's if it keeps nothing."""
        if self.data != MEMORY:
            return Path(self.data).expanduser()
        place = state_folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return place
