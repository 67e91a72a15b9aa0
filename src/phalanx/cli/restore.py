"""`phalanx restore`: put a copy of the store back."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.options import state_directory
from phalanx.store.backup import restore
from phalanx.store.errors import StoreUnusable


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--data", type=click.Path(path_type=Path), default=None, metavar="DIR",
    help="The folder to put it in. [default: the one that phalanx up uses]",
)  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace a store that is there already.")
def command(source: Path, data: Path | None, replace: bool) -> None:
    """Make a copy the store again; the control plane must not run.

    \b
    Example:
      phalanx restore monday.db --replace
    """
    try:
        revision = restore(source, data or state_directory(), replace=replace)
    except StoreUnusable as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"restored; revisions go on after {revision}")
