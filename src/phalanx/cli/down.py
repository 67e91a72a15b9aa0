"""`phalanx down`: end the control plane that `phalanx up` runs in a folder."""

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
    help="The folder of the control plane. [default: the one that phalanx up uses]",
)
def command(data: Path | None) -> None:
    """End the control plane that runs in a folder, in the background or not. What it keeps, stays.

    One that keeps nothing (phalanx up --data :memory:) is looked for in the usual folder.

    \b
    Example:
      phalanx down
      phalanx down --data ~/other
    """
    folder = data.expanduser() if data else state_directory()
    try:
        has_run = background.stop(folder)
    except (background.StillRunning, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"stopped {folder}" if has_run else f"nothing runs in {folder}", err=not has_run)
