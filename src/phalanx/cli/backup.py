"""`phalanx backup` copies the store to a file; `phalanx restore` replaces the store by a backup."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.background import find_running
from phalanx.cli.cluster_state import data_option
from phalanx.cli.output import echo
from phalanx.store.backup import backup, restore
from phalanx.store.kv import StoreUnusable


def _refuse_memory(folder: Path) -> None:
    """Raise an error if the objects of a control plane that runs are not in its directory."""
    running = find_running(folder)
    if running and running.has_objects_in_memory:
        raise click.ClickException(
            f"the control plane of {folder} keeps its objects in memory; backup and restore need "
            "a cluster on disk"
        )


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar="FILE")
@data_option
def backup_command(target: Path, data: Path) -> None:
    """Copy the store to a new file, as of one revision; the control plane may be running.

    \b
    Example:
      phalanx backup monday.db
    """
    _refuse_memory(data)
    try:
        revision = backup(data, target)
    except StoreUnusable as error:
        raise click.ClickException(str(error)) from None
    echo(f"copied revision {revision} to {target}")


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="FILE")
@data_option
@click.option("--replace", is_flag=True, help="Replace an existing store.")
def restore_command(source: Path, data: Path, replace: bool) -> None:
    """Restore the store from a backup; the control plane must not be running.

    Every row of the backup is verified first. A store that is replaced stays in the data directory
    as store.db.before, until the next restore.

    \b
    Example:
      phalanx restore monday.db --replace
    """
    _refuse_memory(data)
    try:
        revision, before = restore(source, data, replace=replace)
    except StoreUnusable as error:
        raise click.ClickException(str(error)) from None
    echo(f"restored; the next revision is greater than {revision}")
    if before:
        echo(f"the former store is {before}, until the next restore")
