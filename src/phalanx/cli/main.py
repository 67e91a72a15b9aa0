"""`phalanx COMMAND`: the table of commands, and `phalanx completion`.

The table names the module of each command; the click command of `phalanx what-if` is its function
`what_if_command`. The module is imported when the command is called, so that `phalanx --help` and
shell completion start fast.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Any

import click

from phalanx.cli.output import INTERRUPTED, echo
from phalanx.logs import escape_unprintable
from phalanx.version import __version__

#: Command -> its module in `phalanx.cli`, and its line in `phalanx --help`.
COMMANDS = {
    "up": ("up", "Run a control plane in the foreground."),
    "down": ("background", "Stop a cluster; its data stays."),
    "clusters": ("clusters", "List the clusters of phalanx up."),
    "status": ("clusters", "Show whether a cluster runs, and its components and nodes."),
    "delete": ("clusters", "Delete a cluster with all its data."),
    "run": ("run", "Run manifests once on a temporary control plane."),
    "scheduler": ("scheduler", "Run the scheduler alone, against any API server."),
    "controllers": ("controllers", "Run the controllers alone, against any API server."),
    "nodes": ("nodes", "Run simulated nodes alone, against any API server."),
    "install": ("install", "Print the manifests that run Phalanx on a Kubernetes cluster."),
    "migrate": ("migrate", "Move groups of our custom resources to scheduling.k8s.io."),
    "token": ("credentials", "Create, list and revoke tokens."),
    "kubeconfig": ("credentials", "Write a kubeconfig with a client certificate for a user."),
    "backup": ("backup", "Copy the store to a file; the control plane may be running."),
    "restore": ("backup", "Replace the store by a backup."),
    "decisions": ("decisions", "List the decisions that a scheduler recorded, and replay them."),
    "why": ("why", "Explain why a gang or pod is pending, and what would let it run."),
    "describe": ("describe", "Show everything about one gang over its life."),
    "queue": ("queue", "List running and waiting gangs, with position and reason."),
    "top": ("top", "Show the usage of nodes and the progress of gangs, live."),
    "page": ("page", "Print an address of the web page that signs in, once."),
    "what-if": ("what_if", "Tell whether a workload would fit now, must wait, or never fits."),
    "check": ("check", "Verify cluster invariants."),
    "simulate": ("simulate", "Run a workload in virtual time and report waits and usage."),
    "compare": ("compare", "Simulate one workload by several policies or clusters."),
    "record": ("record", "Record what happens in a cluster, for simulations."),
    "replay": ("replay", "Simulate a recording, and compare it with what happened."),
    "debug": ("debug", "Collect a support bundle (secrets removed)."),
    "completion": ("main", "Print a shell completion script."),
}
#: The line of the bash script that takes over a candidate, and what follows for `job/`.
_BASH_REPLY = "COMPREPLY+=($value)"
_BASH_NO_SPACE = "[[ $value == */ ]] && compopt -o nospace 2> /dev/null"
_SHELLS = ("bash", "zsh", "fish")
#: Every option is also an environment variable: `--listen` of `up` is PHALANX_UP_LISTEN.
_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "PHALANX"}


def import_command(name: str) -> click.Command:
    """Import the module of a command; return the command."""
    module_name, _ = COMMANDS[name]
    # The imported modules stay until the process ends: collecting garbage meanwhile finds none.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        module = import_module(f"phalanx.cli.{module_name}")
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
    command: click.Command = getattr(module, f"{name.replace('-', '_')}_command")
    return command


class _LazyGroup(click.Group):
    """Imports the module of a command when the command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        return import_command(cmd_name) if cmd_name in COMMANDS else None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; the message of an error may quote a server, so it is escaped.

        ^C has one exit code, unless the command handles it. Click's own, 1, is that of a failure.
        """
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort) as error:
            # A prompt turns ^C, and the end of the input, into an Abort.
            if not any(isinstance(one, KeyboardInterrupt) for one in (error, error.__context__)):
                raise
            # The terminal has shown ^C in the present line.
            echo("\ninterrupted" if sys.stderr.isatty() else "interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except click.ClickException as error:
            vars(error)["message"] = escape_unprintable(error.message)  # Declared as final.
            raise
        except PermissionError as error:
            if error.filename is None:
                raise
            message = f"cannot use {error.filename}: {error.strerror}"
            raise click.ClickException(escape_unprintable(message)) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name; suggest the nearest for a mistyped one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands in the help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.command(cls=_LazyGroup, context_settings=_CONTEXT_SETTINGS)
@click.version_option(__version__, prog_name="phalanx")
def main() -> None:
    """Gang scheduling for Kubernetes.

    \b
    To begin with:
      phalanx up --detach --nodes 10
      export KUBECONFIG=~/.local/state/phalanx/kubeconfig
      kubectl get nodes
      phalanx down
    """


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print a script that makes a shell complete commands, options and their values.

    \b
    Example:
      phalanx completion fish > ~/.config/fish/completions/phalanx.fish
      source <(phalanx completion bash)     # in ~/.bashrc
      source <(phalanx completion zsh)      # in ~/.zshrc
    """
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None, shell
    root = ctx.find_root()
    script = completion(root.command, {}, "phalanx", "_PHALANX_COMPLETE").source()
    # After `job/` the name follows without a space.
    echo(script.replace(_BASH_REPLY, f"{_BASH_REPLY}\n            {_BASH_NO_SPACE}"))
