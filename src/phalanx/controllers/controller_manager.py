"""Runs the controllers beside an API server, in this process or elsewhere.

Stands above `registry`, which builds controllers, and `leadership`, which waits for the server and
holds the lease; below the command line.

A server is foreign if discovery does not show the GroupBinding of `phalanx.dev`. A foreign server
has controllers of its own: there only Jobs whose `managedBy` names our controller are reconciled,
and every other controller is off unless it is selected by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from phalanx import logs
from phalanx.api.batch import OWN_JOB_CONTROLLER
from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.feature_gates import DEFAULT_GATES as GATES
from phalanx.api.feature_gates import FeatureGates
from phalanx.api.kinds import GROUP_BINDING, Kind
from phalanx.api.workload_sources import NATIVE_SOURCES, ServedSources
from phalanx.builder.ownership import SCHEDULING_PARENTS
from phalanx.client.client import Client, served_kinds
from phalanx.client.workload_sources import discover_sources
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

LOG = logs.component("controllers")

#: The default name of the lease.
LEASE_NAME = "phalanx-controllers"


@dataclass(frozen=True, slots=True)
class ControllerCapabilities:
    """Whether a server is foreign, and the kinds that it serves, in the order of discovery.

    The `sources` say as which kinds it keeps groups of pods.
    """

    is_foreign: bool
    kinds: tuple[Kind, ...]
    sources: ServedSources = NATIVE_SOURCES


@dataclass(frozen=True, slots=True)
class ControllerManagerConfig:
    """Which controllers run, and how.

    `load_root_ca` returns the certificate authority of the server, if it is known.
    """

    selection: ControllerSelection
    gates: FeatureGates = GATES
    basic_workloads: bool = True
    workload_parents: frozenset[tuple[str, str]] = SCHEDULING_PARENTS
    load_root_ca: Callable[[], Awaitable[str]] | None = None


class ControllerManager:
    """Runs controllers against a server until cancelled.

    Without an `election` they run without holding a lease. `on_ready` is called with the names of
    the controllers each time that they start.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        *,
        on_ready: Callable[[Sequence[str]], None],
        config: ControllerManagerConfig,
        election: ElectionConfig | None = None,
        log: logs.Log = LOG,
    ) -> None:
        self._client, self._clock, self._random = client, clock, random
        self._on_ready, self._config, self._log = on_ready, config, log
        spec = RunnerSpec(self._discover, self._build_task, {}, lambda found: found.sources)
        self._runner = LeaderElectedRunner(
            client, clock, random, log=log, spec=spec, election=election
        )

    @property
    def not_ready_reason(self) -> str:
        """Why the controllers are not ready to lead; "" if they are."""
        return self._runner.not_ready_reason

    async def run(self) -> None:
        """Run the controllers, term after term."""
        await self._runner.run()

    async def drain(self) -> None:
        """Do nothing: every reconcile can be interrupted at any point."""

    async def _discover(self) -> ControllerCapabilities:
        known = await served_kinds(self._client, (GROUP_BINDING, *STORED_KINDS))
        sources = await discover_sources(self._client)
        converted = [row.target for row in sources.rows if row.target not in known]
        return ControllerCapabilities(GROUP_BINDING not in known, (*known, *converted), sources)

    def _build_task(self, capabilities: ControllerCapabilities, informers: Informers) -> LeaderTask:
        config = self._config
        kinds = config.gates.filter_served(capabilities.kinds)
        selected = self._select_controllers(capabilities, kinds)
        context = ControllerContext(
            informers.client,
            informers,
            self._clock,
            random=self._random,
            gates=config.gates,
            kinds=kinds,
            basic_workloads=config.basic_workloads,
            workload_parents=config.workload_parents,
            is_foreign=capabilities.is_foreign,
            load_root_ca=config.load_root_ca,
        )
        runnables = {row.name: build_controllers(context, [row]) for row in selected}
        errors = self._client.errors

        async def run_controllers() -> None:
            names = [row.name for row in selected]
            self._log.info("controllers started", controllers=names)
            self._on_ready(names)
            async with asyncio.TaskGroup() as group:
                for name, tasks in runnables.items():
                    for run in tasks:
                        group.create_task(errors.keep_running(run, self._log, controller=name))

        return LeaderTask(LEASE_NAME, run_controllers)

    def _select_controllers(
        self, capabilities: ControllerCapabilities, kinds: Sequence[Kind]
    ) -> list[ControllerDescriptor]:
        """Return the controllers for such a server, and log which selected ones cannot run."""
        if capabilities.is_foreign:
            self._log.info(
                "the API server is not Phalanx: only Jobs with this managedBy are reconciled",
                managed_by=OWN_JOB_CONTROLLER,
                missing=GROUP_BINDING.resource,
            )
        selected: list[ControllerDescriptor] = []
        has_custom_groups = not capabilities.sources.are_native
        for row in self._config.selection.select(
            is_foreign=capabilities.is_foreign, has_custom_groups=has_custom_groups
        ):
            if missing := missing_kinds(kinds, row):
                self._log.warning(
                    "controller off: the API server does not serve a required resource",
                    controller=row.name,
                    missing=missing[0].resource,
                )
            elif row.requires_root_ca and self._config.load_root_ca is None:
                self._log.warning(
                    "controller off: the kubeconfig has no certificate authority",
                    controller=row.name,
                )
            else:
                selected.append(row)
        return selected
