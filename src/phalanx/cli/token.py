"""`phalanx token`: create, list and revoke tokens of a control plane."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.api.meta import timestamp
from phalanx.cli.credentials import (
    data_option,
    groups_option,
    open_keyring,
    parse_duration,
    read_server_address,
    write_kubeconfig,
)
from phalanx.clock import WallClock
from phalanx.server.security.users import authenticated_user


@click.group()
def command() -> None:
    """Create, list and revoke tokens, also while the control plane runs.

    Roles decide what a user may do: bind one to the user or to a group.

    \b
    Example:
      phalanx token create ann --group team --for 24h
      kubectl create rolebinding team --clusterrole edit --group team
    """


@command.command()
@click.argument("user")
@groups_option
@click.option(
    "--for",
    "duration",
    default="",
    metavar="24h",
    help="Validity of the token. [default: until revoked]",
)
@click.option(
    "--kubeconfig",
    "file",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Write a kubeconfig with the token instead of printing the token.",
)
@data_option
def create(
    *, user: str, groups: tuple[str, ...], duration: str, file: Path | None, data: Path | None
) -> None:
    """Create a token for USER. It is shown once; the control plane keeps only its hash."""
    keyring = open_keyring(data)
    server = read_server_address(data) if file else None
    seconds = parse_duration(duration) if duration else None
    user_info = authenticated_user(user, groups)
    token = keyring.issued_tokens.create(user_info, WallClock().now(), seconds)
    if file and server:
        write_kubeconfig(file, server, user, token=token)
    else:
        click.echo(token)


@command.command("list")
@data_option
def list_tokens(data: Path | None) -> None:
    """List the tokens with user, groups and expiry. The tokens themselves are not stored."""
    for token in open_keyring(data).issued_tokens.all():
        until = timestamp(token.expires) if token.expires is not None else "revoked"
        click.echo(f"{token.id}  {token.user}  {','.join(token.groups)}  until {until}")


@command.command()
@click.argument("token_id", metavar="ID")
@data_option
def revoke(token_id: str, data: Path | None) -> None:
    """Revoke a token by the ID that the list shows."""
    if not open_keyring(data).issued_tokens.revoke(token_id):
        raise click.ClickException(f"there is no token {token_id}; see phalanx token list")
    click.echo(f"revoked {token_id}")
