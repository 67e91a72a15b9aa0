"""The small port of a part that runs by itself: is it alive, is it ready, what has it measured.

Plain HTTP without a credential, as for a kubelet and for Prometheus: nothing can be changed there.
`phalanx up` has the same on the API server itself.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import click

from phalanx.cli.options import address
from phalanx.telemetry import TEXT, Metrics

#: Seconds that answers under way at the end are waited for.
_FAREWELL = 0.5


def health_socket(text: str) -> socket.socket | None:
    """The port that `--listen` asks for, if it asks for one."""
    if not text:
        return None
    host, port = address(text)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {text}: {error.strerror}; choose another with --listen"
        ) from None


@contextlib.asynccontextmanager
async def health(
    sock: socket.socket | None, metrics: Metrics, trouble: Callable[[], str]
) -> AsyncIterator[None]:
    """Answer there while the context lasts. `trouble` says why it is not ready, if it is not."""
    if sock is None:
        yield
        return
    # Imported here: most of those who run a part do not ask for it.
    from aiohttp import web

    async def alive(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(request: web.Request) -> web.Response:
        wrong = trouble()
        return web.Response(text=wrong or "ok", status=503 if wrong else 200)

    async def measured(request: web.Request) -> web.Response:
        return web.Response(body=metrics.text().encode(), headers={"content-type": TEXT})

    pages = {"/livez": alive, "/healthz": alive, "/readyz": ready, "/metrics": measured}
    app = web.Application()
    app.add_routes([web.get(path, page) for path, page in pages.items()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_FAREWELL)
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        yield
    finally:
        await runner.cleanup()
