"""The cluster that a command asks: the options that name it, and a read-only client for it.

The cluster is that of `--kubeconfig`, else of $KUBECONFIG, else the one whose pod runs the command,
else the `phalanx up` of this user.
"""

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
    """Add `--kubeconfig` and `--context`."""
    for option in (
        click.option("--context", default="", help="The context to use. [default: the current]"),
        click.option(
            "--kubeconfig",
            "config",
            type=click.Path(path_type=Path),
            default=None,
            metavar="FILE",
            help=_DEFAULT_HELP,
        ),
    ):
        command = option(command)
    return command


def cluster_options(command: F) -> F:
    """Add `-n`, `--kubeconfig` and `--context`."""
    namespace = click.option(
        "-n", "--namespace", default="", metavar="NAME", help="[default: the context's]"
    )
    return namespace(server_options(command))


def load_client_config(config: Path | None, context: str) -> kubeconfig.ClientConfig:
    """Return the server that the options name, with a credential for it."""
    if not config and not os.environ.get("KUBECONFIG"):
        in_cluster = kubeconfig.load_in_cluster(os.environ)
        if in_cluster is not None:
            return in_cluster
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
    """Run a query with a read-only client and the context's namespace; return its result."""

    async def run(server: kubeconfig.ClientConfig) -> T:
        client = Client(ReadOnlyTransport(kubeconfig.create_transport(server)))
        try:
            return await query(client, server.namespace or "default")
        finally:
            await client.close()

    try:
        return uvloop.run(run(load_client_config(config, context)))
    except Unreachable as error:
        raise click.ClickException(f"{error}; is it running? (phalanx up)") from None
    except (kubeconfig.KubeconfigError, ApiError) as error:
        raise click.ClickException(str(error)) from None
