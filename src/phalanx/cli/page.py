"""`phalanx page`: print an address of the page that signs in, once."""

from __future__ import annotations

from http.client import CREATED
from pathlib import Path

import click
import orjson
import uvloop

from phalanx.api.errors import ApiError
from phalanx.api.wire import Reply, Request
from phalanx.cli.background import sign_in_url
from phalanx.cli.connection import (
    explain_unreachable,
    load_client_config,
    may_run_plugin,
    server_options,
)
from phalanx.cli.output import echo
from phalanx.client import kubeconfig
from phalanx.client.protocol import error_from_reply
from phalanx.client.transports import Unreachable

_CODES_PATH = "/phalanx/v1/sign-in-codes"


@click.command()
@server_options
def page_command(*, config: Path | None, context: str) -> None:
    """Print an address of the page that signs in, once, within ten minutes.

    The page has the rights of the user of the kubeconfig. The server must listen on a loopback
    address, and the kubeconfig must have a token.

    \b
    Example:
      phalanx page
      xdg-open "$(phalanx page)"
    """
    try:
        server = load_client_config(config, context)
        code = uvloop.run(_request_code(server, allow_exec=may_run_plugin(server)))
    except Unreachable as error:
        raise click.ClickException(explain_unreachable(error)) from None
    except (kubeconfig.KubeconfigError, ApiError) as error:
        raise click.ClickException(str(error)) from None
    echo(sign_in_url(server.server, code))


async def _request_code(server: kubeconfig.ClientConfig, *, allow_exec: bool) -> str:
    transport = kubeconfig.create_transport(server, allow_exec=allow_exec)
    try:
        reply = await transport.send(Request("POST", _CODES_PATH))
    finally:
        await transport.close()
    assert isinstance(reply, Reply)
    if reply.code != CREATED:
        raise error_from_reply(reply)
    return str(orjson.loads(reply.body)["code"])
