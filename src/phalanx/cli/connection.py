"""Options that every command with a cluster takes, and the client that they lead to."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from phalanx.api.errors import ApiError
from phalanx.cli.options import state_directory
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.transports import ReadOnlyTransport, Unreachable

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_DEFAULT_HELP = "[default: $KUBECONFIG, then the cluster of this pod, then the running phalanx up]"


def server_options(command: F) -> F:
    """`--kubeconfig` and `--context`."""
    for option in (
        click.option("--context", default="", help="The context to use. [default: the current]"),
        click.option("--kubeconfig", "config", type=click.Path(path_type=Path), default=None,
                     metavar="FILE", help=_DEFAULT_HELP),
    ):  # fmt: skip
        command = option(command)
    return command


def cluster_options(command: F) -> F:
    """`-n`, `--kubeconfig` and `--context`."""
    namespace = click.option(
        "-n", "--namespace", default="", metavar="NAME", help="[default: the context's]"
    )
    return namespace(server_options(command))


def load_client_config(config: Path | None, context: str) -> kubeconfig.ClientConfig:
    """The server that the options lead to, and a credential for it."""
    if not config and not os.environ.get("KUBECONFIG"):
        inside = kubeconfig.load_in_cluster(os.environ)
        if inside is not None:
            return inside
    files = (
        [config]
        if config
        else kubeconfig.kubeconfig_paths(os.environ, state_directory() / "kubeconfig")
    )
    if not any(file.exists() for file in files):
        raise kubeconfig.KubeconfigError(
            f"there is no kubeconfig at {' or '.join(map(str, files))}; "
            "start a control plane with phalanx up, or name a file with --kubeconfig"
        )
    return kubeconfig.load(files, context)


def query_cluster(
    config: Path | None, context: str, query: Callable[[Client, str], Awaitable[T]]
) -> T:
    """Put a question to the cluster, given a client that only reads and the context's namespace."""
    try:
        return uvloop.run(_run_query(load_client_config(config, context), query))
    except Unreachable as error:
        raise click.ClickException(f"{error}; does it run? (phalanx up)") from None
    except (kubeconfig.KubeconfigError, ApiError) as error:
        raise click.ClickException(str(error)) from None


async def _run_query(
    server: kubeconfig.ClientConfig, query: Callable[[Client, str], Awaitable[T]]
) -> T:
    client = Client(ReadOnlyTransport(kubeconfig.create_transport(server)))
    try:
        return await query(client, server.namespace or "default")
    finally:
        await client.close()
