"""`phalanx debug`: collect a support bundle without secrets, as a tar.gz.

The bundle contains versions, objects, events, metrics, decisions and the last lines of the logs. It
never contains Secrets, values of ConfigMaps and of environment variables, keys, tokens or
kubeconfigs. `missing.txt` in the bundle lists what could not be read. The cluster is only read.
"""

from __future__ import annotations

import io
import platform
import sys
import tarfile
from collections.abc import Awaitable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import click

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
from phalanx.version import __version__

#: Lines taken from the end of each log.
MAX_LOG_LINES = 2_000
#: Logs of a control plane in its data directory.
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
    help="Data directory of the control plane, for its logs. [default: that of phalanx up]",
)
@click.option(
    "--decision-log",
    "decisions",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Decision log to include, if phalanx up --decision-log wrote one.",
)
def command(
    *,
    file: Path | None,
    config: Path | None,
    context: str,
    data: Path | None,
    decisions: Path | None,
) -> None:
    """Collect a support bundle (secrets removed) in FILE, a tar.gz: versions, objects, events,
    metrics, decisions, logs.

    Secrets, values of ConfigMaps and environment variables, keys and tokens are left out. Names are
    not: check the bundle before you share it.

    \b
    Example:
      phalanx debug
      phalanx debug bundle.tar.gz --decision-log decisions.jsonl
    """
    now = WallClock().now()
    target = file or Path(f"phalanx-debug-{timestamp(now).replace(':', '')}.tar.gz")
    parts = {"versions.txt": _local_versions()}
    try:
        parts |= query_cluster(config, context, _collect_cluster)
    except click.ClickException as error:
        parts["missing.txt"] = f"the cluster: {error.message}\n"
    parts |= _collect_logs(data or state_directory(), decisions)
    try:
        _write_archive(target, parts, now)
    except OSError as error:
        raise click.ClickException(f"cannot write {target}: {error.strerror}") from None
    if missing := parts.get("missing.txt"):
        click.echo(f"without {missing}", err=True, nl=False)
    click.echo(f"wrote {target}")


def _local_versions() -> str:
    packages = sorted(
        f"{distribution.metadata['Name']} {distribution.version}"
        for distribution in distributions()
    )
    head = f"phalanx {__version__}\npython {sys.version}\n{platform.platform()}\n\n"
    return head + "\n".join(dict.fromkeys(packages)) + "\n"


async def _collect_cluster(client: Client, namespace: str) -> dict[str, str]:
    """Return the cluster's objects and endpoints as files; failures go to `missing.txt`."""
    files, missing = dict[str, str](), list[str]()

    async def collect(name: str, content: Awaitable[str]) -> None:
        try:
            files[name] = await content
        except ApiError as error:
            missing.append(f"{name}: {error}\n")

    for name, path in _ENDPOINTS.items():
        await collect(name, _get_text(client, path))
    for kind in STORED_KINDS:
        if kind is not SECRET:
            await collect(f"objects/{kind.resource}.json", _dump_objects(client, kind))
    if missing:
        files["missing.txt"] = "".join(missing)
    return files


async def _get_text(client: Client, path: str) -> str:
    return (await client.get_raw(path)).decode(errors="replace")


async def _dump_objects(client: Client, kind: Kind) -> str:
    listing = await client.list(kind)
    return format_structured([_redact(kind, obj) for obj in listing.items], JSON) + "\n"


def _redact(kind: Kind, obj: Object) -> Object:
    """Remove values that may be secret from an object."""
    (obj["metadata"].get("annotations") or {}).pop(_LAST_APPLIED, None)
    if kind is CONFIG_MAP:
        for part in ("data", "binaryData"):
            obj |= {part: dict.fromkeys(obj[part], _REDACTED)} if obj.get(part) else {}
    _redact_variables(obj)
    return obj


def _redact_variables(node: Any) -> None:
    """Remove the values of the environment variables of all containers, at any depth."""
    if isinstance(node, dict):
        for variable in node.get("env") or () if isinstance(node.get("env"), list) else ():
            if isinstance(variable, dict) and variable.get("value"):
                variable["value"] = _REDACTED
        for value in node.values():
            _redact_variables(value)
    elif isinstance(node, list):
        for value in node:
            _redact_variables(value)


def _collect_logs(folder: Path, decisions: Path | None) -> dict[str, str]:
    files = [folder.expanduser() / name for name in _LOG_FILES]
    paths = {f"logs/{path.name}": path for path in files if path.is_file()}
    if decisions:
        paths[f"decisions/{decisions.name}"] = decisions
    return {name: _last_lines(path) for name, path in paths.items()}


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
