"""What `phalanx token` and `phalanx kubeconfig` share: data directory, server, durations."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from phalanx.cli.options import state_directory
from phalanx.client import kubeconfig
from phalanx.server.security.keyring import Keyring
from phalanx.server.security.private_files import InsecurePermissionsError

F = TypeVar("F", bound=Callable[..., Any])

_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


class ServerAddress(NamedTuple):
    """The URL of a server and the certificate authority that clients should trust."""

    url: str
    ca: str


def data_option(command: F) -> F:
    """Add `--data`."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path),
        default=None,
        metavar="DIR",
        help="Data directory of the control plane. [default: that of phalanx up]",
    )(command)


def groups_option(command: F) -> F:
    """Add `--group`."""
    return click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="NAME",
        help="Group of the user; may be repeated.",
    )(command)


def open_keyring(data: Path | None) -> Keyring:
    """Open the keys of a control plane that has run before."""
    folder = data or state_directory()
    try:
        keyring = Keyring(folder)
    except FileNotFoundError:
        raise click.ClickException(f"{folder} does not exist; start phalanx up first") from None
    except InsecurePermissionsError as error:
        raise click.ClickException(str(error)) from None
    if not keyring.has_ca:
        raise click.ClickException(f"no control plane has used {folder}; start phalanx up first")
    return keyring


def read_server_address(data: Path | None) -> ServerAddress:
    """Read the server's address from the kubeconfig in the data directory."""
    try:
        config = kubeconfig.load([(data or state_directory()) / "kubeconfig"])
    except kubeconfig.KubeconfigError as error:
        raise click.ClickException(str(error)) from None
    return ServerAddress(config.server, config.ca)


def parse_duration(text: str) -> float:
    """Convert `30m`, `24h` or `7d` to seconds."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None or not int(match[1]):
        raise click.BadParameter(f'invalid duration "{text}"; use for example 30m, 24h or 7d')
    return float(int(match[1]) * _DURATION_UNITS[match[2]])


def write_kubeconfig(file: Path, server: ServerAddress, name: str, **credential: Any) -> None:
    """Write a kubeconfig for a user, with a token or a client certificate."""
    try:
        kubeconfig.write(file, server.url, server.ca, name=name, **credential)
    except kubeconfig.KubeconfigError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"wrote {file}")
