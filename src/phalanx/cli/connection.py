"""The cluster that a command asks: the options that name it, and a read-only client for it.

The cluster is that of `--kubeconfig` or `--cluster`, else of $KUBECONFIG, else the one whose pod
runs the command, else the running `phalanx up` of this user; if several run, that named `default`.

A kubeconfig may name a program (an exec plugin) that provides the credential. The author of the
file chooses the program, so it runs only if the user allows it: with `--allow-exec`, or by the
answer to a question on a terminal. The answer "always" is stored in the state directory, for this
program with these arguments and environment variables only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from phalanx.api.errors import ApiError, Forbidden, Unauthorized
from phalanx.api.wire import compact_json
from phalanx.cli.background import cluster_kubeconfig, find_running
from phalanx.cli.cluster_state import (
    DEFAULT_CLUSTER,
    cluster_folder,
    command_line,
    complete_cluster,
    context_name,
    existing_folder,
    list_clusters,
    parse_cluster_name,
)
from phalanx.cli.completion import complete_namespace
from phalanx.cli.options import state_directory
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.transports import ReadOnlyTransport, Transport, Unreachable
from phalanx.logs import escape_unprintable
from phalanx.server.security.private_files import (
    InsecurePermissionsError,
    check_private,
    write_private,
)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: The file in the state directory with one line `DIGEST COMMAND` per plugin that may always run.
_ALLOWED_PLUGINS_FILE = "allowed-exec-plugins"
#: Where the click context keeps whether exec plugins may run.
_ALLOW_EXEC = f"{__name__}.allow_exec"
#: Where the click context keeps the name of the cluster.
_CLUSTER = f"{__name__}.cluster"
_DEFAULT_HELP = "[default: $KUBECONFIG, then the cluster of this pod, then the running phalanx up]"


def _keep_allow_exec(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[_ALLOW_EXEC] = value


def _keep_cluster(ctx: click.Context, param: click.Parameter, value: str) -> None:
    ctx.meta[_CLUSTER] = parse_cluster_name(ctx, param, value)


def server_options(command: F) -> F:
    """Add `--kubeconfig`, `--context`, `--cluster` and `--allow-exec`."""
    for option in (
        click.option(
            "--allow-exec",
            is_flag=True,
            expose_value=False,
            callback=_keep_allow_exec,
            help="Run the program that the kubeconfig names as the source of its credential.",
        ),
        click.option(
            "--cluster",
            default="",
            expose_value=False,
            callback=_keep_cluster,
            shell_complete=complete_cluster,
            metavar="NAME",
            help="A cluster of phalanx up --name; see phalanx clusters.",
        ),
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
    """Add `-n` and the options of `server_options`."""
    namespace = click.option(
        "-n",
        "--namespace",
        default="",
        metavar="NAME",
        shell_complete=complete_namespace,
        help="[default: the context's]",
    )
    return namespace(server_options(command))


def chosen_cluster() -> str:
    """Return the value of `--cluster`; "" if it is not given."""
    ctx = click.get_current_context(silent=True)
    return str(ctx.meta.get(_CLUSTER, "")) if ctx else ""


def load_client_config(config: Path | None, context: str) -> kubeconfig.ClientConfig:
    """Return the server that the options name, with a credential for it."""
    cluster = chosen_cluster()
    if config and cluster:
        raise click.UsageError("--kubeconfig and --cluster both name a server; leave out one")
    if config:
        files = [config]
    elif cluster:
        files = [cluster_kubeconfig(existing_folder(cluster))]
    elif os.environ.get("KUBECONFIG"):
        files = kubeconfig.kubeconfig_paths(os.environ, state_directory())
    elif in_cluster := kubeconfig.load_in_cluster(os.environ):
        return in_cluster
    else:
        clusters = {context_name(name): name for name in list_clusters()}
        cluster, context = clusters.get(context, ""), "" if context in clusters else context
        files = [cluster_kubeconfig(cluster_folder(cluster or _running_cluster()))]
    if not any(file.exists() for file in files):
        raise kubeconfig.KubeconfigError(
            f"there is no kubeconfig at {' or '.join(map(str, files))}; "
            "start a control plane with phalanx up, or name a file with --kubeconfig"
        )
    return kubeconfig.load(files, context)


def _running_cluster() -> str:
    """The name of the only cluster that runs, else the default cluster."""
    running = [name for name in list_clusters() if find_running(cluster_folder(name))]
    if len(running) > 1 and DEFAULT_CLUSTER not in running:
        raise kubeconfig.KubeconfigError(
            f"several clusters are running; choose one with --cluster: {', '.join(running)}"
        )
    return running[0] if len(running) == 1 else DEFAULT_CLUSTER


def may_run_plugin(server: kubeconfig.ClientConfig) -> bool:
    """Return whether the server's exec plugin may run; asks on a terminal.

    Raises KubeconfigError if the user has not allowed a plugin that is needed.
    """
    plugin, ctx = server.needed_plugin, click.get_current_context(silent=True)
    if plugin is None or (ctx is not None and ctx.meta.get(_ALLOW_EXEC)):
        return True
    # What runs is decided by the program, its arguments and its environment: PATH, LD_PRELOAD.
    executable = os.path.abspath(shutil.which(plugin.command) or plugin.command)
    identity = compact_json([executable, plugin.args, plugin.env])
    digest = hashlib.sha256(identity).hexdigest()
    file = state_directory() / _ALLOWED_PLUGINS_FILE
    allowed = _read_allowed_plugins(file)
    if any(line.startswith(digest) for line in allowed):
        return True
    answer = "no"
    program = escape_unprintable(shlex.join([plugin.command, *plugin.args]), keep="")
    variables = [f"{name}={value}" for name, value in plugin.env]
    environment = escape_unprintable(f"{shlex.join(variables)} ", keep="") if variables else ""
    if ctx is not None and sys.stdin.isatty() and sys.stderr.isatty():
        answer = click.prompt(
            f"The kubeconfig runs a program for the credential: {environment}{program}\nRun it?",
            type=click.Choice(["yes", "always", "no"]),
            default=answer,
            err=True,
        )
        ctx.meta[_ALLOW_EXEC] = answer != "no"
    if answer == "always":
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        line = f"{digest} {escape_unprintable(plugin.command, keep='')}"
        write_private(file, "".join(f"{one}\n" for one in [*allowed, line]).encode())
    if answer == "no":
        raise kubeconfig.ExecNotAllowed(
            f"the kubeconfig runs the program {program} for the credential; "
            "if you trust it, add --allow-exec"
        )
    return True


def _read_allowed_plugins(file: Path) -> list[str]:
    """Return the lines of the file; a file that others could write or read does not count."""
    try:
        check_private(file)
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError, InsecurePermissionsError):
        return []


def explain_unreachable(error: Unreachable) -> str:
    """Return the message of an error, with the command that starts the server if it is ours."""
    if not error.is_down:
        return str(error)
    # The kubeconfig may be a copy, or have contexts of several clusters: the URL tells.
    for name in dict.fromkeys(filter(None, (chosen_cluster(), *list_clusters()))):
        folder = cluster_folder(name)
        with contextlib.suppress(kubeconfig.KubeconfigError):
            if kubeconfig.load([cluster_kubeconfig(folder)]).server == error.server:
                return f"{error}; is it running? ({command_line('up', folder)})"
    return f"{error}; is it running?"


def query_cluster(
    config: Path | None, context: str, query: Callable[[Client, str], Awaitable[T]]
) -> T:
    """Run a query with a read-only client and the context's namespace; return its result."""
    return _run_with_client(config, context, query, wrap=ReadOnlyTransport)


def change_cluster(
    config: Path | None, context: str, change: Callable[[Client, str], Awaitable[T]]
) -> T:
    """Run a change with a client that may write, and the context's namespace."""
    return _run_with_client(config, context, change, wrap=lambda transport: transport)


def _ignore_closed_connections(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an error that no task awaits; that of a connection comes after its cancelled watch."""
    if "protocol" not in context:
        loop.default_exception_handler(context)


def _run_with_client(
    config: Path | None,
    context: str,
    run_query: Callable[[Client, str], Awaitable[T]],
    *,
    wrap: Callable[[Transport], Transport],
) -> T:
    async def run(server: kubeconfig.ClientConfig) -> T:
        asyncio.get_running_loop().set_exception_handler(_ignore_closed_connections)
        transport = kubeconfig.create_transport(server, allow_exec=allow_exec)
        client = Client(wrap(transport))
        try:
            return await run_query(client, server.namespace or "default")
        finally:
            await client.close()

    try:
        server = load_client_config(config, context)
        allow_exec = may_run_plugin(server)
        return uvloop.run(run(server))
    except Unreachable as error:
        raise click.ClickException(explain_unreachable(error)) from None
    except Unauthorized:
        raise click.ClickException(
            f"{server.server} rejects the credential of the kubeconfig; "
            "it may have expired, or belong to an earlier cluster: get a new kubeconfig or token"
        ) from None
    except Forbidden as error:
        hint = "ask for that right, or name a namespace where you have it with -n"
        raise click.ClickException(f"{error}; {hint}") from None
    except (kubeconfig.KubeconfigError, ApiError) as error:
        raise click.ClickException(str(error)) from None
