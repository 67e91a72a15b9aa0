"""Options that every command with a cluster takes, and the client that they lead to."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from phalanx.api.errors import ApiError
from phalanx.cli.options import state_folder
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.readonly import ReadOnly
from phalanx.client.transports import Unreachable

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_DEFAULT = "[default: $KUBECONFIG, then the cluster of this pod, then the running phalanx up]"


def server_options(command: F) -> F:
    """`--kubeconfig` and `--context`."""
    for option in (
        click.option("--context", default="", help="The context to use. [default: the current]"),
        click.option("--kubeconfig", "config", type=click.Path(path_type=Path), default=None,
                     metavar="FILE", help=_DEFAULT),
    ):  # fmt: skip
        command = option(command)
    return command


def cluster_options(command: F) -> F:
    """`-n`, `--kubeconfig` and `--context`."""
    namespace = click.option(
        "-n", "--namespace", default="", metavar="NAME", help="[default: the context's]"
    )
    return namespace(server_options(command))


def access(config: Path | None, context: str) -> kubeconfig.Access:
    """The server that the options lead to, and a credential for it."""
    if not config and not os.environ.get("KUBECONFIG"):
        inside = kubeconfig.in_cluster(os.environ)
        if inside is not None:
            return inside
    files = [config] if config else kubeconfig.search(os.environ, state_folder() / "kubeconfig")
    if not any(file.exists() for file in files):
        raise kubeconfig.KubeconfigError(
            f"there is no kubeconfig at {' or '.join(map(str, files))}; "
            "start a control plane with phalanx up, or name a file with --kubeconfig"
        )
    return kubeconfig.read(files, context)


def ask(config: Path | None, context: str, question: Callable[[Client, str], Awaitable[T]]) -> T:
    """Put a question to the cluster, given a client that only reads and the context's namespace."""
    try:
        return uvloop.run(_asked(access(config, context), question))
    except Unreachable as error:
        raise click.ClickException(f"{error}; does it run? (phalanx up)") from None
    except (kubeconfig.KubeconfigError, ApiError) as error:
        raise click.ClickException(str(error)) from None


async def _asked(server: kubeconfig.Access, question: Callable[[Client, str], Awaitable[T]]) -> T:
    client = Client(ReadOnly(kubeconfig.transport(server)))
    try:
        return await question(client, server.namespace or "default")
    finally:
        await client.close()
