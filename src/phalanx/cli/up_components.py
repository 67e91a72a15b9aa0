"""The component process of `phalanx up`: scheduler, controllers and nodes.

Only this process imports this module, while the server process imports `up_server`: neither waits
for the other's imports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import replace
from http.client import OK

import uvloop

from phalanx.api.wire import Reply, Request, UserInfo
from phalanx.cli.component_runner import plain_error
from phalanx.cli.event_loop_watchdog import watch_event_loop
from phalanx.cli.nodes import process_host, with_node_type
from phalanx.cli.options import open_decision_log
from phalanx.cli.up_processes import READY_PATH, ROOT_CA_PATH, UpOptions, tune_garbage_collector
from phalanx.client.client import Client
from phalanx.client.process_channel import ProcessChannel
from phalanx.client.transports import InProcessTransport
from phalanx.clock import WallClock
from phalanx.components import ComponentConfig, Components
from phalanx.controllers.scheduling.exact_solver import HighsSolver, ThreadedSolver
from phalanx.randomness import SystemRandom
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.telemetry import METRICS_CONTENT_TYPE, Metrics


def run_components(sock: socket.socket, settings: UpOptions) -> None:
    """Run the components until the server process closes the socket."""
    handler = settings.log.configure()
    with process_host(settings.run_processes, settings.programs) as host:
        config = ComponentConfig(
            nodes=with_node_type(settings.nodes, host),
            without=settings.disabled,
            gates=settings.gates,
            profiles=settings.profiles or DEFAULT_PROFILES,
            decision_log=open_decision_log(settings.decision_log),
            solver=ThreadedSolver(HighsSolver()),
            basic_workloads=settings.basic_workloads,
            workload_parents=settings.workload_parents,
            stage_rules=settings.stages,
            host=host,
            raise_errors=False,
        )
        try:
            uvloop.run(_run_until_closed(sock, config, handler))
        except ExceptionGroup as group:
            raise plain_error(group) from None


async def _run_until_closed(
    sock: socket.socket, config: ComponentConfig, log_handler: logging.Handler
) -> None:
    metrics, is_ready = Metrics(), asyncio.Event()

    async def answer(request: Request) -> Reply:
        if request.path == READY_PATH:
            await is_ready.wait()
            return Reply(OK, b"")
        return Reply(OK, metrics.render().encode(), METRICS_CONTENT_TYPE)

    channel = await ProcessChannel.connect(sock, answer)
    # The server process closes the channel to stop this one. Until the components are cancelled,
    # each of them logs that it has lost the server.
    log_handler.addFilter(
        lambda record: record.levelno >= logging.ERROR or not channel.closed.done()
    )

    def client_for(user: UserInfo) -> Client:
        transport = InProcessTransport(channel.request, user)
        return Client(transport, metrics, raise_errors=config.raise_errors)

    async def load_root_ca() -> str:
        reply = await channel.request(Request("GET", ROOT_CA_PATH))
        assert isinstance(reply, Reply)
        return reply.body.decode()

    components = Components(
        client_for,
        WallClock(),
        SystemRandom(),
        config=replace(config, load_root_ca=load_root_ca),
    )

    async def run() -> None:
        async with components.running():
            is_ready.set()
            tune_garbage_collector()
            await channel.closed

    with watch_event_loop(metrics, "components"):
        running = asyncio.create_task(run())
        await asyncio.wait((running, channel.closed), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
