"""`phalanx COMMAND`: the table of commands.

Each command is a module `phalanx.cli.<command>` with a click command named `command`. The module is
imported when the command is called, so that `phalanx --help` and shell completion start fast.
"""

from __future__ import annotations

import gc
from importlib import import_module

import click

from phalanx.version import __version__

#: Command -> its line in `phalanx --help`.
COMMANDS = {
    "up": "Run a control plane in the foreground.",
    "down": "Stop the control plane that runs in the background.",
    "run": "Run manifests once on a temporary control plane.",
    "scheduler": "Run the scheduler alone, against any API server.",
    "controllers": "Run the controllers alone, against any API server.",
    "nodes": "Run simulated nodes alone, against any API server.",
    "token": "Create, list and revoke tokens.",
    "kubeconfig": "Write a kubeconfig with a client certificate for a user.",
    "backup": "Copy the store to a file; the control plane may be running.",
    "restore": "Replace the store by a backup.",
    "decisions": "List the decisions that a scheduler recorded, and replay them.",
    "why": "Explain why a gang or pod is pending, and what would let it run.",
    "queue": "List running and waiting gangs, with position and reason.",
    "top": "Show the usage of nodes and the progress of gangs, live.",
    "what-if": "Tell whether a workload would fit now, must wait, or never fits.",
    "check": "Verify cluster invariants.",
    "debug": "Collect a support bundle (secrets removed).",
    "completion": "Print a shell completion script.",
}


#: Every option is also an environment variable: `--listen` of `up` is PHALANX_UP_LISTEN.
_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "PHALANX"}


class _LazyGroup(click.Group):
    """Imports the module of a command when the command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        # The imported modules stay until the process ends: collecting garbage meanwhile finds none.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            module = import_module(f"phalanx.cli.{cmd_name.replace('-', '_')}")
        finally:
            gc.freeze()
            if was_enabled:
                gc.enable()
        command: click.Command = module.command
        return command

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
            formatter.write_dl(list(COMMANDS.items()))


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
