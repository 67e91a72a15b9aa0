"""`phalanx debug`: collect a support bundle without secrets, as a tar.gz.

The bundle contains versions, objects, events, metrics, decisions and the last lines of the logs. It
never contains Secrets, keys, tokens or kubeconfigs, and of other objects no field that may hold a
secret: `redact` leaves out values of ConfigMaps, environment variables, commands, arguments, HTTP
headers and applied manifests, at any depth. `missing.txt` in the bundle lists what could not be
read. The cluster is only read. The file is readable by its owner only.
"""

from __future__ import annotations

import io
import os
import platform
import sys
import tarfile
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import click
import msgspec

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.errors import ApiError, Forbidden
from phalanx.api.kinds import CONFIG_MAP, SECRET, Kind
from phalanx.api.meta import LAST_APPLIED_ANNOTATION, timestamp
from phalanx.api.workload_sources import COMPAT_NAMES
from phalanx.cli.cluster_state import cluster_folder
from phalanx.cli.connection import chosen_cluster, cluster_options, query_cluster
from phalanx.cli.output import (
    JSON,
    LiveDisplay,
    StyledLine,
    echo,
    format_structured,
    join_names,
    progress_bar,
)
from phalanx.client.client import Client
from phalanx.client.workload_sources import discover_sources
from phalanx.clock import WallClock
from phalanx.version import __version__

#: Lines taken from the end of each log.
MAX_LOG_LINES = 2_000
#: Logs of a control plane in its data directory.
_LOG_FILES = ("up.log", "audit.log")
#: The file in the bundle that lists what could not be read, and how many kinds stderr names.
_MISSING_FILE, _MAX_NAMES = "missing.txt", 8
_REDACTED = "(left out)"
#: The domains of annotations whose meaning is known.
_KNOWN_DOMAINS = (".phalanx.dev", ".kubernetes.io", ".k8s.io")
_ENDPOINTS = {"version.json": "/version", "metrics.txt": "/metrics"}


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@cluster_options
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Data directory of the control plane, for its logs. [default: that of the cluster]",
)
@click.option(
    "--decision-log",
    "decisions",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Decision log to include, if phalanx up --decision-log wrote one.",
)
def debug_command(
    *,
    file: Path | None,
    namespace: str,
    config: Path | None,
    context: str,
    data: Path | None,
    decisions: Path | None,
) -> None:
    """Collect a support bundle (secrets removed) in FILE, a tar.gz: versions, objects, events,
    metrics, decisions, logs.

    Left out are Secrets, keys and tokens, values of ConfigMaps and environment variables, commands,
    arguments, HTTP headers and applied manifests. Names are not: check the bundle before you share
    it.

    \b
    Example:
      phalanx debug
      phalanx debug bundle.tar.gz --decision-log decisions.jsonl
    """
    now = WallClock().now()
    target = file or Path(f"phalanx-debug-{timestamp(now).replace(':', '')}.tar.gz")
    parts = {"versions.txt": _local_versions()}
    display = LiveDisplay(sys.stderr) if sys.stderr.isatty() else None

    async def collect(client: Client, default_namespace: str) -> tuple[dict[str, str], str]:
        return await _collect_cluster(client, namespace or default_namespace, display)

    try:
        collected, missing = query_cluster(config, context, collect)
        parts |= collected
    except click.ClickException as error:
        parts[_MISSING_FILE] = missing = f"the cluster: {error.message}\n"
    parts |= _collect_logs(data or cluster_folder(chosen_cluster()), decisions)
    try:
        _write_archive(target, parts, now)
    except OSError as error:
        raise click.ClickException(f"cannot write {target}: {error.strerror}") from None
    if missing:
        echo(f"without {missing}", err=True, nl=False)
    echo(f"wrote {target}")


def _local_versions() -> str:
    packages = sorted(
        f"{distribution.metadata['Name']} {distribution.version}"
        for distribution in distributions()
    )
    head = f"phalanx {__version__}\npython {sys.version}\n{platform.platform()}\n\n"
    return head + "\n".join(dict.fromkeys(packages)) + "\n"


async def _collect_cluster(
    client: Client, namespace: str, display: LiveDisplay | None
) -> tuple[dict[str, str], str]:
    """Return the cluster's objects and endpoints as files, and what is missing, in few words.

    Kinds that may not be read in all namespaces are read in one. `missing.txt` has every failure.
    """
    files, missing = dict[str, str](), list[str]()
    sources = await discover_sources(client, COMPAT_NAMES)
    kinds = dict.fromkeys([*STORED_KINDS, *(row.kind for row in sources.rows)])
    limited, forbidden = list[str](), list[str]()
    total = len(_ENDPOINTS) + len(kinds)

    async def dump(kind: Kind) -> str:
        try:
            return await _dump_objects(client, kind)
        except Forbidden:
            if not kind.namespaced:
                raise
        text = await _dump_objects(client, kind, namespace)
        limited.append(kind.resource)
        return text

    async def collect(name: str, content: Awaitable[str]) -> None:
        if display:
            done = len(files) + len(missing) + len(forbidden)
            display.draw([StyledLine(f"{progress_bar(done, total)} {name}")])
        try:
            files[name] = await content
        except Forbidden:
            forbidden.append(name.removeprefix("objects/").removesuffix(".json"))
        except ApiError as error:
            missing.append(f"{name}: {error}\n")

    for name, path in _ENDPOINTS.items():
        await collect(name, _get_text(client, path))
    await collect("ready.txt", _get_readiness(client))
    for kind in kinds:
        if kind is not SECRET:
            await collect(f"objects/{kind.resource}.json", dump(kind))
    if display:
        display.draw([])
    unread = {
        "what the credential may not read": forbidden,
        f"other namespaces than {namespace}, which may not be read": limited,
    }
    shown = list(missing)
    for title, names in unread.items():
        if names:
            missing.append(f"{title}: {', '.join(names)}\n")
            shown.append(f"{title}: {join_names(names, _MAX_NAMES)}\n")
    if missing:
        files[_MISSING_FILE] = "".join(missing)
    return files, "".join(shown)


async def _get_text(client: Client, path: str) -> str:
    return (await client.get_raw(path)).decode(errors="replace")


async def _get_readiness(client: Client) -> str:
    """Return the line of every check, whether they pass or not."""
    return (await client.get_reply("/readyz?verbose")).body.decode(errors="replace")


async def _dump_objects(client: Client, kind: Kind, namespace: str = "") -> str:
    listing = await client.list(kind, namespace=namespace)
    return format_structured([redact(obj, kind.name) for obj in listing.items], JSON) + "\n"


def redact(node: Any, kind: str = "") -> Any:
    """Return a JSON value without the values that may be secret, at any depth.

    `kind` is the kind of an object that does not state its own, such as an item of a list.
    """
    if isinstance(node, list):
        return [redact(one) for one in node]
    if not isinstance(node, dict):
        return node
    kind = node.get("kind") or kind
    redactions = {**_REDACTIONS, **_DATA_REDACTIONS} if kind in _DATA_KINDS else _REDACTIONS
    return {name: redactions.get(name, redact)(value) for name, value in node.items()}


def _redact_all(value: Any) -> Any:
    """Leave out every text in a value."""
    if isinstance(value, dict):
        return {name: _redact_all(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_redact_all(one) for one in value]
    return _REDACTED if isinstance(value, str) else value


def _redact_texts(value: Any) -> Any:
    """Leave out a text or a list of texts; anything else is no command line."""
    if isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(one, str) for one in value)
    ):
        return _redact_all(value)
    return redact(value)


def _redact_pairs(value: Any) -> Any:
    """Leave out the values of a list of names and values."""
    if not isinstance(value, list):
        return redact(value)
    return [
        {**redact(one), "value": _REDACTED} if isinstance(one, dict) and "value" in one else one
        for one in value
    ]


def _redact_http_get(value: Any) -> Any:
    """Leave out the headers and the query of a request."""
    result = redact(value)
    if isinstance(result, dict) and isinstance(result.get("path"), str):
        path, mark, _ = result["path"].partition("?")
        result["path"] = f"{path}?{_REDACTED}" if mark else path
    return result


def _redact_metadata(value: Any) -> Any:
    """Leave out annotations of other programs: they may keep whole manifests, as kubectl does."""
    result = redact(value)
    annotations = result.get("annotations") if isinstance(result, dict) else None
    if isinstance(annotations, dict):
        result["annotations"] = {
            name: text if _is_known_annotation(name) else _REDACTED
            for name, text in annotations.items()
        }
    return result


def _is_known_annotation(name: str) -> bool:
    domain = f".{name.partition('/')[0]}"
    return name != LAST_APPLIED_ANNOTATION and domain.endswith(_KNOWN_DOMAINS)


#: The kinds whose data are secret, and how.
_DATA_KINDS = (CONFIG_MAP.name, SECRET.name)
_DATA_REDACTIONS: Mapping[str, Callable[[Any], Any]] = dict.fromkeys(
    ("data", "binaryData", "stringData"), _redact_all
)
#: How a field is redacted wherever it occurs: pod templates are nested in many kinds.
_REDACTIONS: Mapping[str, Callable[[Any], Any]] = {
    "command": _redact_texts,
    "args": _redact_texts,
    "env": _redact_pairs,
    "httpHeaders": _redact_pairs,
    "httpGet": _redact_http_get,
    "volumeAttributes": _redact_all,
    "metadata": _redact_metadata,
}


def _collect_logs(folder: Path, decisions: Path | None) -> dict[str, str]:
    files = [folder.expanduser() / name for name in _LOG_FILES]
    paths = {f"logs/{path.name}": path for path in files if path.is_file()}
    if decisions:
        paths[f"decisions/{decisions.name}"] = decisions
    logs: dict[str, str] = {}
    for name, path in paths.items():
        lines = path.read_text(errors="replace").splitlines(keepends=True)
        logs[name] = "".join(map(_redact_line, lines[-MAX_LOG_LINES:]))
    return logs


def _redact_line(line: str) -> str:
    """Redact a line of a decision log of version 0.1, which recorded the applied manifests."""
    if LAST_APPLIED_ANNOTATION not in line:
        return line
    try:
        return msgspec.json.encode(redact(msgspec.json.decode(line))).decode() + "\n"
    except msgspec.DecodeError:
        return f"{_REDACTED}\n"


def _write_archive(file: Path, parts: dict[str, str], now: float) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with (
        os.fdopen(os.open(file, flags, 0o600), "wb") as target,
        tarfile.open(fileobj=target, mode="w:gz") as archive,
    ):
        for name, text in sorted(parts.items()):
            content = text.encode()
            info = tarfile.TarInfo(f"phalanx-debug/{name}")
            info.size, info.mtime, info.mode = len(content), int(now), 0o600
            archive.addfile(info, io.BytesIO(content))
