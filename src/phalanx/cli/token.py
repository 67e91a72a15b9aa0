"""`phalanx token`: tokens for people and programs, handed out beside the control plane."""

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
    """Hand out tokens, list them, take them back. A control plane that runs heeds it at once.

    What somebody may do is a matter of roles: bind one to the user or to a group.

    \b
    Example:
      phalanx token create ann --group team --for 24h
      kubectl create rolebinding team --clusterrole edit --group team
    """


@command.command()
@click.argument("user")
@groups_option
@click.option("--for", "lasts", default="", metavar="24h", help="[default: until taken back]")
@click.option(
    "--kubeconfig", "file", type=click.Path(path_type=Path), default=None, metavar="FILE",
    help="Write a kubeconfig with the token instead of printing it.",
)  # fmt: skip
@data_option
def create(
    user: str, groups: tuple[str, ...], lasts: str, file: Path | None, data: Path | None
) -> None:
    """Hand out a token for USER. It is shown once and kept nowhere."""
    keys = open_keyring(data)
    where = read_server_address(data) if file else None
    seconds = parse_duration(lasts) if lasts else None
    token = keys.issued_tokens.create(authenticated_user(user, groups), WallClock().now(), seconds)
    if file and where:
        write_kubeconfig(file, where, user, token=token)
    else:
        click.echo(token)


@command.command("list")
@data_option
def list_tokens(data: Path | None) -> None:
    """Show which tokens there are: whose, and until when. The tokens themselves are not known."""
    for one in open_keyring(data).issued_tokens.all():
        until = timestamp(one.expires) if one.expires is not None else "taken back"
        click.echo(f"{one.id}  {one.user}  {','.join(one.groups)}  until {until}")


@command.command()
@click.argument("number", metavar="ID")
@data_option
def revoke(number: str, data: Path | None) -> None:
    """Take a token back, by the ID that the list shows."""
    if not open_keyring(data).issued_tokens.revoke(number):
        raise click.ClickException(f"there is no token {number}; see phalanx token list")
    click.echo(f"took back {number}")
