"""`phalanx down`: stop the control plane that `phalanx up` runs in a directory."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import background
from phalanx.cli.options import state_directory


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Data directory of the control plane. [default: that of phalanx up]",
)
def command(data: Path | None) -> None:
    """Stop the control plane of a directory, in the background or not. Its data stays.

    A control plane without data (phalanx up --data :memory:) belongs to the default directory.

    \b
    Example:
      phalanx down
      phalanx down --data ~/other
    """
    folder = data.expanduser() if data else state_directory()
    try:
        was_running = background.stop(folder)
    except (background.StillRunning, OSError) as error:
        raise click.ClickException(str(error)) from None
    if was_running:
        click.echo(f"stopped {folder}")
    else:
        click.echo(f"no control plane runs in {folder}", err=True)
