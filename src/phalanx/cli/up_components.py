"""The crew's side of `phalanx up`: what runs in the process beside the server's.

Loaded by that process alone, while the server's loads its own half: neither waits for the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from http.client import OK

import uvloop

from phalanx.api.wire import Reply, Request
from phalanx.cli.component_runner import plain_error
from phalanx.cli.nodes import process_host, with_node_type
from phalanx.cli.options import open_decision_log
from phalanx.cli.up_processes import READY_PATH, UpOptions, tune_garbage_collector
from phalanx.client.client import Client
from phalanx.client.process_channel import ProcessChannel
from phalanx.client.transports import InProcessTransport
from phalanx.clock import WallClock
from phalanx.components import ComponentConfig, Components
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.controllers.scheduling.exact_solver import HighsSolver, ThreadedSolver
from phalanx.randomness import SystemRandom
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES
from phalanx.telemetry import METRICS_CONTENT_TYPE, Metrics


def run_components(sock: socket.socket, settings: UpOptions) -> None:
    """Be the crew until the line ends."""
    with process_host(settings.run_processes, settings.programs) as machine:
        try:
            uvloop.run(_run_until_closed(sock, _component_config(settings, machine)))
        except ExceptionGroup as group:
            raise plain_error(group) from None


def _component_config(settings: UpOptions, machine: ProcessHost | None) -> ComponentConfig:
    """Who works beside the server; on a machine that runs processes, if there is one."""
    return ComponentConfig(
        with_node_type(settings.nodes, machine), settings.disabled, settings.gates,
        settings.profiles or DEFAULT_PROFILES,
        decision_log=open_decision_log(settings.decision_log), solver=ThreadedSolver(HighsSolver()),
        basic_workloads=settings.basic_workloads, stage_rules=settings.stages, host=machine,
    )  # fmt: skip


async def _run_until_closed(sock: socket.socket, staff: ComponentConfig) -> None:
    metrics, is_ready = Metrics(), asyncio.Event()

    async def answer(request: Request) -> Reply:
        if request.path == READY_PATH:
            await is_ready.wait()
        return Reply(OK, metrics.render().encode(), METRICS_CONTENT_TYPE)

    line = await ProcessChannel.connect(sock, answer)

    async def work() -> None:
        crew = Components(
            lambda user: Client(InProcessTransport(line.request, user), metrics),
            clock,
            chance,
            staff,
        )
        async with crew.running():
            is_ready.set()
            tune_garbage_collector()
            await line.closed

    clock, chance, working = WallClock(), SystemRandom(), asyncio.create_task(work())
    await asyncio.wait((working, line.closed), return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
