"""Options that commands share: parsers of option texts, node pools, logging, the decision log.

A parser turns the text of one option into a value. A text that it cannot parse raises
click.BadParameter, which names the option: one line and exit code 2. `log_options` and
`decision_log_option` are decorators that add the same options to several commands.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from phalanx import logs
from phalanx.api import feature_gates as gates
from phalanx.builder.ownership import parse_parents
from phalanx.cli.cluster_file import (
    LEVEL_LABELS,
    MAX_NODES,
    InvalidClusterFile,
    TopologyLevels,
    describe_invalid_quantity,
    is_quantity,
    load_node_pools,
    numbered_pool,
)
from phalanx.cli.output import echo
from phalanx.controllers.nodes.node_pool import DEFAULT_CAPACITY, SimulatedNode
from phalanx.controllers.nodes.simulated_devices import (
    BadDevices,
    SimulatedDevices,
    parse_devices,
)
from phalanx.controllers.nodes.simulated_kubelet import BadStages, StageRule, parse_stage_rules
from phalanx.yaml_files import InvalidYaml, load_yaml

if TYPE_CHECKING:
    from phalanx.controllers.scheduling.decision_log import DecisionLog
    from phalanx.server.service_allocator import ServiceRanges

F = TypeVar("F", bound=Callable[..., Any])

#: Components of the control plane that `--without` can leave out.
COMPONENTS = ("scheduler", "controllers", "nodes")
_DURATION_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


# ---- parsers of option texts ---------------------------------------------------------------------


def state_directory() -> Path:
    """Return the directory in which `phalanx up` keeps its state by default."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "phalanx"


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`; an IPv6 host is in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(
            f'invalid address "{text}"; use HOST:PORT, for example 127.0.0.1:6443',
            param_hint="--listen",
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def parse_duration(text: str, option: str | None = None) -> float:
    """Parse a duration of Go, such as `1h30m`, `90s` or `0`, as seconds.

    The callback of an option need not name it: click does.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[hms])", text)
    if text != "0" and (not parts or "".join(map("".join, parts)) != text):
        raise click.BadParameter(
            f'invalid duration "{text}"; use for example 90s, 30m or 1h30m', param_hint=option
        )
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)


def parse_timeout(context: click.Context, option: click.Parameter, text: str) -> float:
    """Parse a duration of Go, or a plain number of seconds; more than 0."""
    is_number = text.replace(".", "", 1).isdecimal()
    seconds = float(text) if is_number else parse_duration(text)
    if seconds <= 0:
        raise click.BadParameter("must be more than 0")
    return seconds


def parse_optional_time(
    context: click.Context, option: click.Parameter, text: str | None
) -> float | None:
    """Parse a duration that may be left out to seconds."""
    return parse_timeout(context, option, text) if text else None


def parse_components(text: str) -> frozenset[str]:
    """Parse a comma-separated list of components of the control plane."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in COMPONENTS:
            raise click.BadParameter(
                f'unknown component "{name}"; available: {", ".join(COMPONENTS)}',
                param_hint="--without",
            )
    return frozenset(names)


def parse_feature_gates(text: str) -> gates.FeatureGates:
    """Parse `A=true,B=false`. A gate's former name works and prints a warning on stderr."""
    try:
        requested = gates.parse_gates(text)
        resolved = gates.resolve_gates(requested)
    except gates.BadFeatureGates as error:
        raise click.BadParameter(str(error), param_hint="--feature-gates") from None
    for warning in gates.deprecation_warnings(requested):
        echo(f"Warning: {warning}", err=True)
    return resolved


def parse_service_ranges(cluster_ips: str, node_ports: str) -> ServiceRanges:
    """Parse the ranges of the cluster IPs and of the node ports of Services."""
    # Only `phalanx up` needs the server: the other commands start faster without it.
    from phalanx.server.service_allocator import (
        InvalidRange,
        ServiceRanges,
        parse_cluster_ip_range,
        parse_node_port_range,
    )

    option = "--service-cluster-ip-range"
    try:
        cluster_ip_range = parse_cluster_ip_range(cluster_ips)
        option = "--service-node-port-range"
        return ServiceRanges(cluster_ip_range, parse_node_port_range(node_ports))
    except InvalidRange as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def parse_shape(text: str, option: str | None = None) -> dict[str, str]:
    """Parse `cpu=8,memory=32Gi,nvidia.com/gpu=8`; other resources keep their default."""
    capacity = dict(DEFAULT_CAPACITY)
    for name, quantity in _parse_pairs(option, text, "cpu=8,memory=32Gi"):
        if not is_quantity(quantity):
            raise click.BadParameter(describe_invalid_quantity(quantity), param_hint=option)
        capacity[name] = quantity
    return capacity


def parse_topology(text: str) -> list[tuple[str, int]]:
    """Parse `block=2,rack=4` (two blocks of four racks each) as (label, count per parent)."""
    levels = []
    for name, count in _parse_pairs("--topology", text, "block=2,rack=4"):
        if not count.isdecimal() or int(count) < 1:
            raise click.BadParameter(
                f'invalid number of {name}s "{count}"; use 1 or more', param_hint="--topology"
            )
        levels.append((LEVEL_LABELS.get(name, name), int(count)))
    return levels


def parse_nodes(
    text: str, capacity: Mapping[str, str], levels: TopologyLevels
) -> list[SimulatedNode]:
    """Parse a number of equal nodes, or load the cluster file of this name."""
    if text.isdecimal():
        count = int(text)
        if count > MAX_NODES:
            raise click.BadParameter(
                f"{count} nodes are more than {MAX_NODES}", param_hint="--nodes"
            )
        return numbered_pool(count, capacity, levels).nodes()
    try:
        return load_node_pools(Path(text), capacity, levels)
    except InvalidClusterFile as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--nodes") from None


def parse_device_options(texts: Sequence[str]) -> list[SimulatedDevices]:
    """Parse the texts of `--devices`."""
    try:
        return [parse_devices(text) for text in texts]
    except BadDevices as error:
        raise click.BadParameter(str(error), param_hint="--devices") from None


def load_stage_rules(path: Path | None) -> list[StageRule]:
    """Load the rules of `--stages FILE`: how long simulated pods take to start, run and stop."""
    if path is None:
        return []
    try:
        return parse_stage_rules(load_yaml(path.read_text()))
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        reason = "is not a text file"
    except (InvalidYaml, BadStages) as error:
        reason = str(error)
    raise click.BadParameter(f"{str(path)!r}: {reason}", param_hint="--stages")


def _parse_pairs(option: str | None, text: str, example: str) -> list[tuple[str, str]]:
    pairs: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise click.BadParameter(
                f'invalid pair "{part}"; use for example {example}', param_hint=option
            )
        if name in pairs:
            raise click.BadParameter(f"{name} is given twice", param_hint=option)
        pairs[name] = value
    return list(pairs.items())


# ---- logging -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Values of `--log-format`, `--log-file` and `--verbose`."""

    log_format: logs.Format = "text"
    file: Path | None = None
    verbose: bool = False

    def configure(self) -> logging.Handler:
        """Send this process's log lines to the file, or to stderr, at level info or debug.

        Called once in each process, after all other options are checked.
        """
        level = logging.DEBUG if self.verbose else logging.INFO
        try:
            return logs.configure(file=self.file, log_format=self.log_format, level=level)
        except OSError as error:
            raise click.UsageError(
                f"cannot open --log-file {self.file}: {error.strerror}"
            ) from None


def log_options(command: F) -> F:
    """Add `--log-format`, `--log-file` and `-v`; the command gets them as `log: LogOptions`."""

    @functools.wraps(command)
    def with_log(
        *args: Any, log_format: logs.Format, log_file: Path | None, verbose: bool, **kwargs: Any
    ) -> Any:
        return command(*args, log=LogOptions(log_format, log_file, verbose), **kwargs)

    decorated: Any = with_log
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Log single decisions and actions too."),
        click.option(
            "--log-file",
            type=click.Path(path_type=Path, dir_okay=False),
            default=None,
            metavar="FILE",
            help="File to append log lines to. [default: stderr]",
        ),
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="Format of log lines: text, or one JSON object per line.",
        ),
    ):
        decorated = option(decorated)
    result: F = decorated
    return result


# ---- the decision log ----------------------------------------------------------------------------


def configuration_option(help_text: str) -> Callable[[F], F]:
    """Add `--config`; the command gets the KubeSchedulerConfiguration file as `policy`."""
    return click.option(
        "--config",
        "policy",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE",
        help=help_text,
    )


def decision_log_option(command: F) -> F:
    """Add `--decision-log`; the command gets it as `decisions`."""
    return click.option(
        "--decision-log",
        "decisions",
        type=click.Path(path_type=Path, dir_okay=False, writable=True),
        default=None,
        metavar="FILE",
        help="File to record the scheduler's input and decisions in; see phalanx decisions.",
    )(command)


def check_log_directory(option: str, file: Path | None) -> None:
    """Raise a usage error if the directory of the log that an option names does not exist."""
    if file and not file.absolute().parent.is_dir():
        raise click.UsageError(f"cannot write {option} {file}: its directory does not exist")


def open_decision_log(file: Path | None) -> DecisionLog | None:
    """Open the decision log, if there is one. Imports its module only then."""
    if file is None:
        return None
    from phalanx.controllers.scheduling.decision_log import (
        DecisionLog,
        DecisionLogFile,
        write_in_thread,
    )

    return DecisionLog(write_in_thread(DecisionLogFile(file).write))


#: The kinds whose controllers manage the scheduling of the Jobs that they create.
workload_parents_option = click.option(
    "--workload-parents",
    "parents",
    default="",
    metavar="KIND.GROUP,…",
    help="More kinds whose controllers manage the scheduling of the Jobs that they create, such as "
    "Training.example.com; -Kind.group removes a known one.",
)


def parse_workload_parents(text: str) -> frozenset[tuple[str, str]]:
    """Parse --workload-parents."""
    try:
        return parse_parents(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--workload-parents") from None


def parse_webhook_urls(texts: Sequence[str]) -> Mapping[str, str]:
    """Parse the texts of `--webhook-url` to a map of `NAMESPACE/SERVICE` to its URL."""
    found = {}
    for text in texts:
        service, _, url = text.partition("=")
        namespace, _, name = service.partition("/")
        parts = urlsplit(url)
        if not namespace or not name or parts.scheme != "https" or not parts.hostname:
            raise click.BadParameter(
                f'invalid webhook URL "{text}"; use NAMESPACE/SERVICE=URL, for example '
                "default/my-operator=https://127.0.0.1:9443",
                param_hint="--webhook-url",
            )
        found[service] = url
    return found
