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
from phalanx.chance import TrueChance
from phalanx.cli.apart import READY, settle
from phalanx.cli.decisionlog import decision_log
from phalanx.cli.nodes import process_host, sorted_out
from phalanx.cli.settings import Settings
from phalanx.cli.troubles import plain
from phalanx.client.client import Client
from phalanx.client.line import Line
from phalanx.client.transports import InProcess
from phalanx.clock import WallClock
from phalanx.controllers.nodes.processes import Host
from phalanx.controllers.shell.exact import Beside, Solver
from phalanx.crew import Crew, Staff
from phalanx.scheduler.settings.profiles import DEFAULT_PROFILES
from phalanx.telemetry import TEXT, Metrics


def man(sock: socket.socket, settings: Settings) -> None:
    """Be the crew until the line ends."""
    with process_host(settings.processes, settings.programs) as machine:
        try:
            uvloop.run(_man(sock, _staff(settings, machine)))
        except ExceptionGroup as group:
            raise plain(group) from None


def _staff(settings: Settings, machine: Host | None) -> Staff:
    """Who works beside the server; on a machine that runs processes, if there is one."""
    return Staff(
        sorted_out(settings.nodes, machine), settings.without, settings.gates,
        settings.profiles or DEFAULT_PROFILES,
        log=decision_log(settings.decisions), solving=Beside(Solver()),
        basic_workloads=settings.basic_workloads, stages=settings.stages, host=machine,
    )  # fmt: skip


async def _man(sock: socket.socket, staff: Staff) -> None:
    metrics, is_ready = Metrics(), asyncio.Event()

    async def answer(request: Request) -> Reply:
        if request.path == READY:
            await is_ready.wait()
        return Reply(OK, metrics.text().encode(), TEXT)

    line = await Line.over(sock, answer)

    async def work() -> None:
        crew = Crew(lambda user: Client(InProcess(line.ask, user), metrics), clock, chance, staff)
        async with crew.running():
            is_ready.set()
            settle()
            await line.ended

    clock, chance, working = WallClock(), TrueChance(), asyncio.create_task(work())
    await asyncio.wait((working, line.ended), return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
