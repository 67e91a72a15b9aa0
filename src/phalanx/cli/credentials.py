"""Credentials for users: `phalanx token` and `phalanx kubeconfig`.

`phalanx token` creates, lists and revokes tokens. `phalanx kubeconfig` writes a kubeconfig with a
client certificate. Both open the keyring in the data directory, also while the control plane runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from phalanx.api.meta import timestamp
from phalanx.cli.background import cluster_kubeconfig, find_running
from phalanx.cli.cluster_state import data_option
from phalanx.cli.output import echo
from phalanx.client import kubeconfig
from phalanx.clock import WallClock
from phalanx.server.security.keyring import Keyring
from phalanx.server.security.private_files import InsecurePermissionsError
from phalanx.server.security.users import authenticated_user

F = TypeVar("F", bound=Callable[..., Any])

_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
#: X.509 limits a common name and an organization to 64 bytes.
_MAX_DAYS, _MAX_NAME_BYTES = 3650, 64


class ServerAddress(NamedTuple):
    """The URL of a server and the certificate authority that clients should trust."""

    url: str
    ca: str


def _refuse_empty(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse a user or a group without a name: the variable of a script may be empty."""
    if not all([value] if isinstance(value, str) else value):
        raise click.BadParameter("must not be empty")
    return value


def groups_option(command: F) -> F:
    """Add `--group`."""
    return click.option(
        "--group",
        "groups",
        multiple=True,
        callback=_refuse_empty,
        metavar="NAME",
        help="Group of the user; may be repeated.",
    )(command)


def open_keyring(folder: Path) -> Keyring:
    """Open the keys of a control plane that has run before."""
    running = find_running(folder)
    if running and running.has_keys_in_memory:
        raise click.ClickException(
            f"the control plane of {folder} keeps its keys in memory; use its kubeconfig "
            f"{cluster_kubeconfig(folder)}, or kubectl create token for a service account"
        )
    try:
        keyring = Keyring(folder)
    except FileNotFoundError:
        raise click.ClickException(f"{folder} does not exist; start phalanx up first") from None
    except InsecurePermissionsError as error:
        raise click.ClickException(str(error)) from None
    if not keyring.has_ca:
        raise click.ClickException(f"no control plane has used {folder}; start phalanx up first")
    return keyring


def read_server_address(folder: Path) -> ServerAddress:
    """Read the server's address from the administrator's kubeconfig of a data directory."""
    try:
        config = kubeconfig.load([cluster_kubeconfig(folder)])
    except kubeconfig.KubeconfigError as error:
        raise click.ClickException(str(error)) from None
    return ServerAddress(config.server, config.ca)


def parse_duration(text: str) -> float:
    """Convert `30m`, `24h` or `7d` to seconds."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None or not int(match[1]):
        raise click.BadParameter(
            f'invalid duration "{text}"; use for example 30m, 24h or 7d', param_hint="--for"
        )
    return float(int(match[1]) * _DURATION_UNITS[match[2]])


def write_kubeconfig(file: Path, server: ServerAddress, name: str, **credential: Any) -> None:
    """Write a kubeconfig for a user, with a token or a client certificate."""
    try:
        kubeconfig.write(file, server.url, server.ca, name=name, **credential)
    except kubeconfig.KubeconfigError as error:
        raise click.ClickException(str(error)) from None
    echo(f"wrote {file}")


@click.group()
def token_command() -> None:
    """Create, list and revoke tokens, also while the control plane runs.

    Roles decide what a user may do: bind one to the user or to a group.

    \b
    Example:
      phalanx token create ann --group team --for 24h
      kubectl create rolebinding team --clusterrole edit --group team
    """


@token_command.command()
@click.argument("user", callback=_refuse_empty)
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
    *, user: str, groups: tuple[str, ...], duration: str, file: Path | None, data: Path
) -> None:
    """Create a token for USER. It is shown once; the control plane keeps only its hash."""
    seconds = parse_duration(duration) if duration else None
    keyring = open_keyring(data)
    server = read_server_address(data) if file else None
    user_info = authenticated_user(user, groups)
    token = keyring.issued_tokens.create(user_info, WallClock().now(), seconds)
    if file and server:
        write_kubeconfig(file, server, user, token=token)
    else:
        echo(token)


@token_command.command("list")
@data_option
def list_tokens(data: Path) -> None:
    """List the tokens with user, groups and expiry. The tokens themselves are not stored."""
    for token in open_keyring(data).issued_tokens.all():
        until = timestamp(token.expires) if token.expires is not None else "revoked"
        echo(f"{token.id}  {token.user}  {','.join(token.groups)}  until {until}")


@token_command.command()
@click.argument("token_id", metavar="ID")
@data_option
def revoke(token_id: str, data: Path) -> None:
    """Revoke a token by the ID that the list shows."""
    if not open_keyring(data).issued_tokens.revoke(token_id):
        raise click.ClickException(f"there is no token {token_id}; see phalanx token list")
    echo(f"revoked {token_id}")


@click.command()
@click.argument("user", callback=_refuse_empty)
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
def kubeconfig_command(
    *, user: str, file: Path, groups: tuple[str, ...], days: int, data: Path
) -> None:
    """Write a kubeconfig for USER with a client certificate of the control plane's authority.

    \b
    Example:
      phalanx kubeconfig ann ann.kubeconfig --group team
      phalanx kubeconfig system:node:n1 n1.kubeconfig --group system:nodes
    """
    for name, hint in ((user, "USER"), *((group, "--group") for group in groups)):
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise click.BadParameter(
                f"{name!r} does not fit into a certificate; use phalanx token create --kubeconfig",
                param_hint=hint,
            )
    keyring, server = open_keyring(data), read_server_address(data)
    pair = keyring.create_client_certificate(user, groups, days=days, now=WallClock().now())
    write_kubeconfig(file, server, user, client_certificate=pair)
