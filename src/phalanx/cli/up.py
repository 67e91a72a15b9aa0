"""`phalanx up`: a whole control plane in the foreground."""

from __future__ import annotations

import contextlib
import gc
import secrets
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import uvloop

from phalanx.api.errors import ApiError
from phalanx.api.gates import Gates
from phalanx.chance import TrueChance
from phalanx.cli import options
from phalanx.cli.configuration import load_configuration
from phalanx.cli.signals import signals
from phalanx.client import kubeconfig
from phalanx.clock import WallClock
from phalanx.control_plane import ControlPlane
from phalanx.controllers.decisionlog import DecisionLog, LogFile, in_thread
from phalanx.controllers.nodes import SimulatedNode
from phalanx.scheduler.profiles import DEFAULT_PROFILES, Profiles
from phalanx.server.access import ADMIN, Tokens
from phalanx.server.certificates import server_context, write_private
from phalanx.server.listener import bind_socket, listening
from phalanx.store.errors import StoreBroken, StoreRefused
from phalanx.store.kv import Store
from phalanx.store.memory import MemoryStore
from phalanx.store.sqlite import SqliteStore

MEMORY = ":memory:"
#: Most objects of a request go by themselves: the collector looks for cycles rarely.
_COLLECTION = (20_000, 20, 50)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line asks for."""

    host: str
    port: int
    data: str
    store: str
    kubeconfig: Path | None
    nodes: list[SimulatedNode]
    without: frozenset[str]
    gates: Gates
    profiles: Profiles
    decisions: Path | None
    basic_workloads: bool


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:6443",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to serve; port 0 takes any free one.",
)
@click.option(
    "--data",
    default=None,
    metavar="DIR",
    help=f"Where to keep objects, certificates and token; {MEMORY} keeps nothing. "
    "[default: a folder of the user's]",
)
@click.option(
    "--store",
    type=click.Choice(["sqlite", "memory"]),
    default=None,
    help=f"Where objects are kept: on disk, or in memory until the end. "
    f"[default: sqlite, but memory with --data {MEMORY}]",
)
@click.option(
    "--kubeconfig",
    "config",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Where to write the kubeconfig. [default: DIR/kubeconfig]",
)
@click.option(
    "--nodes",
    default="3",
    show_default=True,
    metavar="FILE|N",
    help="Simulated nodes: how many, or a file that lists them.",
)
@click.option(
    "--shape", default="", metavar="cpu=8,memory=32Gi", help="What each simulated node has."
)
@click.option(
    "--topology",
    default="",
    metavar="block=2,rack=4",
    help="How simulated nodes are spread over domains.",
)
@click.option(
    "--feature-gates",
    default="",
    metavar="A=true,B=false",
    help="Features to switch on or off, by their names in Kubernetes.",
)
@click.option(
    "--config",
    "policy",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="How pods are placed: a KubeSchedulerConfiguration.",
)
@click.option(
    "--decision-log",
    "decisions",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    default=None,
    metavar="FILE",
    help="Where to write what the scheduler sees and decides; see phalanx decisions.",
)
@click.option(
    "--basic-workloads",
    "basic",
    type=click.Choice(["always", "never"]),
    default="always",
    show_default=True,
    help="Whether Jobs that are no gangs get a Workload and a PodGroup too.",
)
@click.option(
    "--without",
    default="",
    metavar="PART,PART",
    help=f"Parts to leave out: {', '.join(options.PARTS)}.",
)
def command(
    listen: str, data: str | None, store: str, config: Path | None, nodes: str, shape: str,
    topology: str, feature_gates: str, policy: Path | None, decisions: Path | None, basic: str,
    without: str,
) -> None:  # fmt: skip
    """Run API server, scheduler, controllers and simulated nodes in one process.

    \b
    Example:
      phalanx up --nodes 100 --shape cpu=8,memory=32Gi,nvidia.com/gpu=8
      export KUBECONFIG=~/.local/state/phalanx/kubeconfig
      kubectl get nodes
    """
    host, port = options.address(listen)
    left_out, gates = options.parts(without), options.feature_gates(feature_gates)
    wanted = options.nodes(nodes, options.shape(shape), options.topology(topology))
    place = data or str(options.state_folder())
    kept = store or ("memory" if place == MEMORY else "sqlite")
    if place == MEMORY and kept != "memory":
        raise click.UsageError(f"--data {MEMORY} keeps nothing; give --store {kept} a folder")
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES
    if decisions and not decisions.absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder for --decision-log {decisions}")
    settings = Settings(
        host, port, place, kept, config, wanted, left_out, gates, profiles, decisions,
        basic == "always",
    )  # fmt: skip
    with _data_folder(settings) as folder:
        try:
            uvloop.run(_up(settings, folder))
        except ExceptionGroup as group:
            raise _plain(group) from None


def _plain(group: ExceptionGroup[Exception]) -> Exception:
    """What went wrong as one sentence, where it was not a bug."""
    known = group.subgroup((ApiError, kubeconfig.KubeconfigError))
    leaf: Exception | None = known
    while isinstance(leaf, ExceptionGroup):
        leaf = leaf.exceptions[0]
    return click.ClickException(str(leaf)) if leaf else group


@contextlib.contextmanager
def _data_folder(settings: Settings) -> Iterator[Path]:
    """The folder of the certificates: for ourselves alone, or gone at the end."""
    if settings.data == MEMORY:
        with tempfile.TemporaryDirectory(prefix="phalanx-") as name:
            yield Path(name)
        return
    folder = Path(settings.data).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as error:
        raise click.ClickException(f"cannot use {folder}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise click.ClickException(
            f"{folder} holds keys but others may enter it; run: chmod 700 {folder}"
        )
    yield folder


async def _up(settings: Settings, folder: Path) -> None:
    clock, chance = WallClock(), TrueChance()
    sock = _listen(settings)
    tls, authority = server_context(folder, _names(settings.host), clock.now())
    token = _token(folder)
    broken: list[StoreBroken] = []
    async with signals() as stopped:

        def stop(error: StoreBroken) -> None:
            broken.append(error)
            stopped.set()

        store = _open(settings, folder, stop)
        tokens = Tokens({token: ADMIN})
        plane = ControlPlane(
            store, clock, chance, nodes=settings.nodes, without=settings.without, tokens=tokens,
            gates=settings.gates, profiles=settings.profiles, log=_log(settings),
            basic_workloads=settings.basic_workloads,
        )  # fmt: skip
        file = settings.kubeconfig or _kubeconfig_place(settings, folder)
        url = _url(settings.host, sock)
        async with plane.running(), listening(plane.server.handle, tokens, sock, tls):
            kubeconfig.write(file, url, authority.decode(), token)
            # What start-up made lives to the end: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_COLLECTION)
            click.echo(f"ready {url} kubeconfig {file}")
            await stopped.wait()
    if broken:
        raise click.ClickException(f"stopped: {broken[0]}")


def _log(settings: Settings) -> DecisionLog | None:
    """Where decisions go, if anywhere."""
    file = settings.decisions
    return DecisionLog(in_thread(LogFile(file).write)) if file else None


def _open(settings: Settings, folder: Path, stop: Callable[[StoreBroken], None]) -> Store:
    """The store that was asked for; one that cannot be opened is refused with its reason."""
    if settings.store == "memory":
        return MemoryStore()
    try:
        return SqliteStore(folder, on_broken=stop)
    except StoreRefused as error:
        raise click.ClickException(str(error)) from None


def _listen(settings: Settings) -> socket.socket:
    try:
        return bind_socket(settings.host, settings.port)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise click.ClickException(
            f"cannot listen on {where}: {error.strerror}; choose another with --listen"
        ) from None


def _token(folder: Path) -> str:
    """The administrator's token: made at first start, the same afterwards."""
    path = folder / "admin.token"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32).encode())
    return path.read_text().strip()


def _kubeconfig_place(settings: Settings, folder: Path) -> Path:
    """Beside the data; with no data to keep, in the user's own folder."""
    if settings.data != MEMORY:
        return folder / "kubeconfig"
    place = options.state_folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place / "kubeconfig"


def _names(host: str) -> list[str]:
    return [] if host in (*_LOOPBACK, "0.0.0.0", "::") else [host]


def _url(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"https://[{shown}]:{port}" if ":" in shown else f"https://{shown}:{port}"
