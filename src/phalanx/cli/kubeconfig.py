"""`phalanx kubeconfig`: write a kubeconfig that authenticates a user by a client certificate."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.credentials import (
    data_option,
    groups_option,
    open_keyring,
    read_server_address,
    write_kubeconfig,
)
from phalanx.clock import WallClock

#: X.509 limits a common name and an organization to 64 bytes.
_MAX_DAYS, _MAX_NAME_BYTES = 3650, 64


@click.command()
@click.argument("user")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@groups_option
@click.option(
    "--days",
    type=click.IntRange(1, _MAX_DAYS),
    default=365,
    show_default=True,
    help="Validity of the certificate; it cannot be revoked before.",
)
@data_option
def command(user: str, file: Path, groups: tuple[str, ...], days: int, data: Path | None) -> None:
    """Write a kubeconfig for USER with a client certificate of the control plane's authority.

    \b
    Example:
      phalanx kubeconfig ann ann.kubeconfig --group team
      phalanx kubeconfig system:node:n1 n1.kubeconfig --group system:nodes
    """
    keyring, server = open_keyring(data), read_server_address(data)
    for name in (user, *groups):
        if not 1 <= len(name.encode()) <= _MAX_NAME_BYTES:
            raise click.BadParameter(
                f"{name!r} does not fit into a certificate; use phalanx token create --kubeconfig"
            )
    pair = keyring.create_client_certificate(user, groups, days, now=WallClock().now())
    write_kubeconfig(file, server, user, client_certificate=pair)
