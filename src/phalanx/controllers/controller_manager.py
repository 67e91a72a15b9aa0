"""The controllers beside an API server, wherever that is, for as many terms as it takes.

Above `roster`, which makes controllers, and `tenure`, which finds the server and has us elected;
below the command line. The peer of `office`, the scheduler's.

A server is foreign if discovery does not show the GroupBinding of `phalanx.dev`: then it has
controllers of its own. There only Jobs that ask for ours by `managedBy` are run, and every other
loop is off unless it is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.api.batch import OWN_JOB_CONTROLLER
from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.feature_gates import DEFAULT_GATES as GATES
from phalanx.api.feature_gates import FeatureGates
from phalanx.api.kinds import GROUP_BINDING, Kind
from phalanx.client.client import Client, served_kinds
from phalanx.clock import Clock
from phalanx.controllers.leadership import (
    ElectionConfig,
    LeaderElectedRunner,
    LeaderTask,
    RunnerSpec,
)
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.registry import (
    ControllerContext,
    ControllerDescriptor,
    ControllerSelection,
    build_controllers,
    missing_kinds,
)
from phalanx.randomness import Random

#: The lease of those who run controllers, where nobody chooses another.
LEASE_NAME = "phalanx-controllers"


@dataclass(frozen=True, slots=True)
class ControllerCapabilities:
    """What a server is and knows, in the order of discovery."""

    is_foreign: bool
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class ControllerManagerCallbacks:
    """How it is told what is going on, and, once, which controllers run."""

    report: Callable[[str], None]
    on_ready: Callable[[Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class ControllerManagerConfig:
    """Which controllers are to run, and how."""

    selection: ControllerSelection
    gates: FeatureGates = GATES
    basic_workloads: bool = True


class ControllerManager:
    """Controllers that run against a server until they are cancelled.

    Without a candidacy they run without asking whether others do.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        callbacks: ControllerManagerCallbacks,
        config: ControllerManagerConfig,
        election: ElectionConfig | None = None,
    ) -> None:
        self._client, self._clock, self._random = client, clock, random
        self._callbacks, self._config = callbacks, config
        place = RunnerSpec(self._discover, self._build_task, {})
        self._runner = LeaderElectedRunner(client, clock, random, callbacks.report, place, election)

    @property
    def not_ready_reason(self) -> str:
        """Why it is not ready to lead, if it is not."""
        return self._runner.not_ready_reason

    async def run(self) -> None:
        """Run the controllers, term after term."""
        await self._runner.run()

    async def drain(self) -> None:
        """Nothing is under way that could not be left where it is."""

    async def _discover(self) -> ControllerCapabilities:
        known = await served_kinds(self._client, (GROUP_BINDING, *STORED_KINDS))
        return ControllerCapabilities(GROUP_BINDING not in known, tuple(known))

    def _build_task(self, capabilities: ControllerCapabilities, informers: Informers) -> LeaderTask:
        wishes = self._config
        kinds = wishes.gates.filter_served(capabilities.kinds)
        chosen = self._select_controllers(capabilities, kinds)
        bench = ControllerContext(
            self._client, informers, self._clock, self._random, wishes.gates, kinds,
            basic_workloads=wishes.basic_workloads, is_foreign=capabilities.is_foreign,
        )  # fmt: skip
        parts = build_controllers(bench, chosen)

        async def control() -> None:
            self._callbacks.on_ready([row.name for row in chosen])
            async with asyncio.TaskGroup() as group:
                for run in parts:
                    group.create_task(run())

        return LeaderTask(LEASE_NAME, control)

    def _select_controllers(
        self, capabilities: ControllerCapabilities, kinds: Sequence[Kind]
    ) -> list[ControllerDescriptor]:
        """Those that are to run beside such a server; says which of the wanted cannot."""
        if capabilities.is_foreign:
            self._callbacks.report(
                f"the API server has no {GROUP_BINDING.resource}, so it is not Phalanx: only Jobs "
                f"with managedBy {OWN_JOB_CONTROLLER} are run"
            )
        chosen: list[ControllerDescriptor] = []
        for row in self._config.selection.select(is_foreign=capabilities.is_foreign):
            missing = missing_kinds(kinds, row)
            if missing:
                self._callbacks.report(f"{row.name} is off: there are no {missing[0].resource}")
            else:
                chosen.append(row)
        return chosen
