"""`phalanx completion SHELL`: print a shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that makes a shell complete commands, options and their values.

    \b
    Example:
      phalanx completion fish > ~/.config/fish/completions/phalanx.fish
      source <(phalanx completion bash)     # in ~/.bashrc
      source <(phalanx completion zsh)      # in ~/.zshrc
    """
    completion = get_completion_class(shell)
    assert completion is not None, shell
    root = ctx.find_root()
    click.echo(completion(root.command, {}, "phalanx", "_PHALANX_COMPLETE").source())
