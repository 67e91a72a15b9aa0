"""`phalanx COMMAND`: the table of commands. Each is loaded when it is called."""

from __future__ import annotations

import gc
from importlib import import_module
from types import ModuleType

import click

from phalanx import __version__

#: Command -> its one line in the help. The module of the same name holds `command`.
COMMANDS = {
    "up": "Run a whole control plane in the foreground.",
    "down": "End the control plane that runs in the background.",
    "run": "Run manifests once on a throw-away control plane.",
    "scheduler": "Run the scheduler alone, against any API server.",
    "controllers": "Run the controllers alone, against any API server.",
    "nodes": "Run simulated nodes alone, against any API server.",
    "token": "Hand out, list and take back tokens.",
    "kubeconfig": "Write a kubeconfig for somebody, with a client certificate.",
    "backup": "Copy the store to a file, while it runs or not.",
    "restore": "Put a copy of the store back.",
    "decisions": "List what a scheduler decided, and replay it.",
    "why": "Say why a pod group or pod is pending, and what would let it run.",
    "queue": "List gangs that run and wait, with position and reason.",
    "top": "Show how full nodes are and how gangs get on, live.",
    "what-if": "Say whether something would fit now, must wait, or never fits.",
    "check": "Check that what must hold of a cluster holds.",
    "debug": "Pack what a report of a fault needs, without secrets.",
    "completion": "Print what makes a shell complete our commands.",
}


#: Every option can be given as a variable as well: `--listen` of `up` is PHALANX_UP_LISTEN.
_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "PHALANX"}


class _LazyGroup(click.Group):
    """Commands whose modules are imported only when they are used, to start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = _import_without_gc(
            f"phalanx.cli.{cmd_name.replace('-', '_')}"
        ).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named; who mistypes one is told which may be meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _import_without_gc(module: str) -> ModuleType:
    """A module and all that it needs, loaded without looking for garbage in what stays anyway."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


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
