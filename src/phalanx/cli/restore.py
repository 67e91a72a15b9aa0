"""`phalanx restore`: replace the store by a backup."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.options import state_directory
from phalanx.store.backup import restore
from phalanx.store.errors import StoreUnusable


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Data directory to restore into. [default: that of phalanx up]",
)
@click.option("--replace", is_flag=True, help="Replace an existing store.")
def command(source: Path, data: Path | None, replace: bool) -> None:
    """Restore the store from a backup; the control plane must not be running.

    \b
    Example:
      phalanx restore monday.db --replace
    """
    try:
        revision = restore(source, data or state_directory(), replace=replace)
    except StoreUnusable as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"restored; the next revision is greater than {revision}")
