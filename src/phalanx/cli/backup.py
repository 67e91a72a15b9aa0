"""`phalanx backup`: copy the store to a file, consistently, while the control plane may run."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.options import state_directory
from phalanx.store.backup import backup
from phalanx.store.errors import StoreUnusable


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Data directory of the control plane. [default: that of phalanx up]",
)
def command(target: Path, data: Path | None) -> None:
    """Copy the store to a new file, as of one revision; the control plane may be running.

    \b
    Example:
      phalanx backup monday.db
    """
    try:
        revision = backup(data or state_directory(), target)
    except StoreUnusable as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"copied revision {revision} to {target}")
