"""What the commands that hand out credentials share: the folder, the server, how long."""

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
    """Where a server is, and what clients should trust."""

    url: str
    ca: str


def data_option(command: F) -> F:
    """`--data`."""
    return click.option(
        "--data", type=click.Path(path_type=Path), default=None, metavar="DIR",
        help="The folder of the control plane. [default: the one that phalanx up uses]",
    )(command)  # fmt: skip


def groups_option(command: F) -> F:
    """`--group`."""
    return click.option(
        "--group", "groups", multiple=True, metavar="NAME",
        help="A group that they are in; may be given again.",
    )(command)  # fmt: skip


def open_keyring(data: Path | None) -> Keyring:
    """The keys of a control plane that has run before."""
    folder = data or state_directory()
    try:
        found = Keyring(folder)
    except FileNotFoundError:
        raise click.ClickException(f"there is no {folder}; start phalanx up first") from None
    except InsecurePermissionsError as error:
        raise click.ClickException(str(error)) from None
    if not found.has_ca:
        raise click.ClickException(f"no control plane has used {folder}; start phalanx up first")
    return found


def read_server_address(data: Path | None) -> ServerAddress:
    """The control plane of a folder, as the kubeconfig that it wrote there says."""
    try:
        found = kubeconfig.load([(data or state_directory()) / "kubeconfig"])
    except kubeconfig.KubeconfigError as error:
        raise click.ClickException(str(error)) from None
    return ServerAddress(found.server, found.ca)


def parse_duration(text: str) -> float:
    """`30m`, `24h` or `7d` in seconds."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None or not int(found[1]):
        raise click.BadParameter(f"{text!r} is no time such as 30m, 24h or 7d")
    return float(int(found[1]) * _DURATION_UNITS[found[2]])


def write_kubeconfig(file: Path, server: ServerAddress, name: str, **credential: Any) -> None:
    """Write a kubeconfig for somebody."""
    try:
        kubeconfig.write(file, server.url, server.ca, name=name, **credential)
    except kubeconfig.KubeconfigError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"wrote {file}")
