"""`phalanx up`: a whole control plane in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import uvloop

from phalanx.api.errors import ApiError
from phalanx.api.gates import Gates
from phalanx.chance import TrueChance
from phalanx.cli import options
from phalanx.cli.configuration import load_configuration
from phalanx.cli.decisionlog import check_decision_log, decision_log, decision_log_option
from phalanx.cli.nodes import LOOPBACK, check_processes, node_options, process_host, sorted_out
from phalanx.cli.signals import signals
from phalanx.client import kubeconfig
from phalanx.clock import Clock, WallClock
from phalanx.control_plane import ControlPlane
from phalanx.controllers.exact import Beside, Solver
from phalanx.controllers.nodes import SimulatedNode
from phalanx.controllers.processes import Host
from phalanx.controllers.stages import Rule
from phalanx.scheduler.profiles import DEFAULT_PROFILES, Profiles
from phalanx.server.app import Server
from phalanx.server.certificates import CLUSTER, LOCAL, renewing
from phalanx.server.listener import bind_socket, listening
from phalanx.server.security.audit import Audit, AuditFile
from phalanx.server.security.door import Refused
from phalanx.server.security.keyring import Keyring
from phalanx.server.security.privacy import Exposed, check_private
from phalanx.store.errors import StoreBroken, StoreRefused
from phalanx.store.kv import Store
from phalanx.store.memory import MemoryStore
from phalanx.store.sqlite import SqliteStore

MEMORY = ":memory:"
_AUDIT, _NO_AUDIT = "audit.log", "none"
#: Most objects of a request go by themselves: the collector looks for cycles rarely.
_COLLECTION = (20_000, 20, 50)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line asks for."""

    host: str
    port: int
    names: tuple[str, ...]
    data: str
    store: str
    kubeconfig: Path | None
    nodes: list[SimulatedNode]
    without: frozenset[str]
    gates: Gates
    profiles: Profiles
    decisions: Path | None
    basic_workloads: bool
    audit: str
    stages: Sequence[Rule]


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:6443",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to serve; port 0 takes any free one.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Another name or address by which clients know the server; may be given again.",
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
@node_options
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
@decision_log_option
@click.option(
    "--audit-log",
    "audit",
    default="",
    metavar="FILE",
    help="Where to write who wrote what and who was refused; none writes nothing. "
    f"[default: DIR/{_AUDIT}, but none with --data {MEMORY}]",
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
    listen: str, names: tuple[str, ...], data: str | None, store: str, config: Path | None,
    nodes: str, shape: str, topology: str, stages: Path | None, processes: bool,
    programs: Path | None, feature_gates: str, policy: Path | None, decisions: Path | None,
    audit: str, basic: str, without: str,
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
    rules = options.stage_rules(stages)
    check_processes(processes, programs, host)
    place = data or str(options.state_folder())
    kept = store or ("memory" if place == MEMORY else "sqlite")
    if place == MEMORY and kept != "memory":
        raise click.UsageError(f"--data {MEMORY} keeps nothing; give --store {kept} a folder")
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES
    check_decision_log(decisions)
    settings = Settings(
        host, port, names, place, kept, config, wanted, left_out, gates, profiles, decisions,
        basic == "always", audit, rules,
    )  # fmt: skip
    with _data_folder(settings) as folder, process_host(processes, programs) as machine:
        try:
            uvloop.run(_up(settings, folder, machine))
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
        check_private(folder)
    except OSError as error:
        raise click.ClickException(f"cannot use {folder}: {error.strerror}") from None
    except Exposed as error:
        raise click.ClickException(str(error)) from None
    yield folder


async def _up(settings: Settings, folder: Path, machine: Host | None) -> None:
    clock, chance = WallClock(), TrueChance()
    sock = _listen(settings)
    keyring, names = _keyring(folder), _names(settings)
    tls, authority = keyring.serving(names, clock.now())
    broken: list[StoreBroken] = []
    async with signals() as stopped:

        def stop(error: StoreBroken) -> None:
            broken.append(error)
            stopped.set()

        store = _open(settings, folder, stop)
        plane = ControlPlane(
            store, clock, chance, nodes=sorted_out(settings.nodes, machine), host=machine,
            without=settings.without,
            tokens=keyring.tokens(), gates=settings.gates, profiles=settings.profiles,
            log=decision_log(settings.decisions), solving=Beside(Solver()),
            basic_workloads=settings.basic_workloads, stages=settings.stages,
        )  # fmt: skip
        server, hosts = plane.server, (*LOCAL, *CLUSTER, *names, settings.host)
        file = settings.kubeconfig or _kubeconfig_place(settings, folder)
        token = keyring.admin_token(_present_token(file), file, clock.now())
        url = _url(settings.host, sock)
        async with (
            _audited(server, settings, folder, clock) as refused,
            plane.running(),
            listening(
                server.handle, server.access.authenticator, sock, tls, hosts=hosts, refused=refused
            ),
            _beside(renewing(tls, folder, names, clock)),
        ):
            kubeconfig.write(file, url, authority.decode(), token)
            # What start-up made lives to the end: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_COLLECTION)
            click.echo(f"ready {url} kubeconfig {file}")
            await stopped.wait()
    if broken:
        raise click.ClickException(f"stopped: {broken[0]}")


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


def _keyring(folder: Path) -> Keyring:
    try:
        return Keyring(folder)
    except Exposed as error:
        raise click.ClickException(str(error)) from None


def _present_token(file: Path) -> str:
    """The token that a kubeconfig of an earlier start holds, if it is one of ours."""
    try:
        return kubeconfig.read([file]).token if file.exists() else ""
    except kubeconfig.KubeconfigError:
        return ""


@contextlib.asynccontextmanager
async def _audited(
    server: Server, settings: Settings, folder: Path, clock: Clock
) -> AsyncIterator[Refused | None]:
    """Have written down what is written and refused, unless nobody wants that."""
    usual = _NO_AUDIT if settings.data == MEMORY else str(folder / _AUDIT)
    wanted = settings.audit or usual
    if wanted == _NO_AUDIT:
        yield None
        return
    server.audit = audit = Audit(AuditFile(Path(wanted)).append, clock)
    try:
        yield audit.refused
    finally:
        audit.close()


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Have something run for as long as the context lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()


def _kubeconfig_place(settings: Settings, folder: Path) -> Path:
    """Beside the data; with no data to keep, in the user's own folder."""
    if settings.data != MEMORY:
        return folder / "kubeconfig"
    place = options.state_folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place / "kubeconfig"


def _names(settings: Settings) -> list[str]:
    """The names of the server beside those that every one has."""
    is_usual = settings.host in (*LOOPBACK, "0.0.0.0", "::")
    return list(settings.names) if is_usual else [settings.host, *settings.names]


def _url(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"https://[{shown}]:{port}" if ":" in shown else f"https://{shown}:{port}"
