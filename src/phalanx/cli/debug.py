"""`phalanx debug`: one archive with what a report of a fault needs, and nothing that is secret.

Versions, objects, events, metrics, decisions, the last lines of the logs. Left out are Secrets, the
values of ConfigMaps and of variables, keys, tokens and kubeconfigs. What could not be had is said
in the archive itself; nothing is changed.
"""

from __future__ import annotations

import io
import platform
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import click

from phalanx import __version__
from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.errors import ApiError
from phalanx.api.kinds import CONFIG_MAP, SECRET, Kind
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.cli.connection import query_cluster, server_options
from phalanx.cli.options import state_directory
from phalanx.cli.output import JSON, format_structured
from phalanx.client.client import Client
from phalanx.clock import WallClock

#: Lines of a log that are taken, the last ones.
MAX_LOG_LINES = 2_000
#: Logs of a control plane, in its folder.
_LOG_FILES = ("up.log", "audit.log")
_REDACTED = "(left out)"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_ENDPOINTS = {"version.json": "/version", "metrics.txt": "/metrics", "ready.txt": "/readyz"}


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@server_options
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="The folder of the control plane, for its logs. [default: the one that phalanx up uses]",
)
@click.option(
    "--decision-log",
    "decisions",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    metavar="FILE",
    help="The log that phalanx up --decision-log wrote, if it did.",
)
def command(
    file: Path | None, config: Path | None, context: str, data: Path | None, decisions: Path | None
) -> None:
    """Pack what a report of a fault needs into FILE, a tar.gz: versions, objects, events, metrics,
    decisions, logs.

    Secrets, values of ConfigMaps and variables, keys and tokens are left out. Look into it before
    you pass it on: names are not.

    \b
    Example:
      phalanx debug
      phalanx debug fault.tar.gz --decision-log decisions.jsonl
    """
    now = WallClock().now()
    place = file or Path(f"phalanx-debug-{timestamp(now).replace(':', '')}.tar.gz")
    parts = dict(_local_versions())
    try:
        parts |= query_cluster(config, context, _collect_cluster)
    except click.ClickException as error:
        parts["missing.txt"] = f"the cluster: {error.message}\n"
    parts |= _collect_logs(data or state_directory(), decisions)
    try:
        _write_archive(place, parts, now)
    except OSError as error:
        raise click.ClickException(f"cannot write {place}: {error.strerror}") from None
    if missing := parts.get("missing.txt"):
        click.echo(f"without {missing}", err=True, nl=False)
    click.echo(f"wrote {place}")


def _local_versions() -> Iterator[tuple[str, str]]:
    """What is known of this program and this machine."""
    packages = sorted(f"{one.metadata['Name']} {one.version}" for one in distributions())
    yield (
        "versions.txt",
        f"phalanx {__version__}\npython {sys.version}\n{platform.platform()}\n\n"
        + "\n".join(dict.fromkeys(packages))
        + "\n",
    )


async def _collect_cluster(client: Client, namespace: str) -> dict[str, str]:
    """All that the cluster tells; what it does not is listed in `missing.txt`."""
    found, missing = dict[str, str](), list[str]()
    async for name, content in _collect_responses(client):
        if isinstance(content, str):
            found[name] = content
        else:
            missing.append(f"{name}: {content}\n")
    if missing:
        found["missing.txt"] = "".join(missing)
    return found


async def _collect_responses(client: Client) -> AsyncIterator[tuple[str, str | ApiError]]:
    for name, path in _ENDPOINTS.items():
        yield name, await _result_or_error(_get_text(client, path))
    for kind in STORED_KINDS:
        if kind is not SECRET:
            name = f"objects/{kind.resource}.json"
            yield name, await _result_or_error(_dump_objects(client, kind))


async def _result_or_error(answer: Awaitable[str]) -> str | ApiError:
    try:
        return await answer
    except ApiError as error:
        return error


async def _get_text(client: Client, path: str) -> str:
    return (await client.get_raw(path)).decode(errors="replace")


async def _dump_objects(client: Client, kind: Kind) -> str:
    listing = await client.list(kind)
    return format_structured([_redact(kind, one) for one in listing.items], JSON) + "\n"


def _redact(kind: Kind, obj: Object) -> Object:
    """An object without values that may be secret."""
    (obj["metadata"].get("annotations") or {}).pop(_LAST_APPLIED, None)
    if kind is CONFIG_MAP:
        for part in ("data", "binaryData"):
            obj |= {part: dict.fromkeys(obj[part], _REDACTED)} if obj.get(part) else {}
    _hide_variables(obj)
    return obj


def _hide_variables(node: Any) -> None:
    """Take away the values of all variables of all containers, wherever they stand."""
    if isinstance(node, dict):
        for one in node.get("env") or () if isinstance(node.get("env"), list) else ():
            if isinstance(one, dict) and one.get("value"):
                one["value"] = _REDACTED
        for value in node.values():
            _hide_variables(value)
    elif isinstance(node, list):
        for value in node:
            _hide_variables(value)


def _collect_logs(folder: Path, decisions: Path | None) -> dict[str, str]:
    """The ends of the logs that there are."""
    files = [folder.expanduser() / name for name in _LOG_FILES]
    found = {f"logs/{path.name}": path for path in files if path.is_file()}
    if decisions:
        found[f"decisions/{decisions.name}"] = decisions
    return {name: _last_lines(path) for name, path in found.items()}


def _last_lines(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines(keepends=True)
    return "".join(lines[-MAX_LOG_LINES:])


def _write_archive(file: Path, parts: dict[str, str], now: float) -> None:
    with tarfile.open(file, "x:gz") as archive:
        for name, text in sorted(parts.items()):
            content = text.encode()
            info = tarfile.TarInfo(f"phalanx-debug/{name}")
            info.size, info.mtime, info.mode = len(content), int(now), 0o600
            archive.addfile(info, io.BytesIO(content))
