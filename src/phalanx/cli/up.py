"""`phalanx up`: a whole control plane in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import click
import uvloop

from phalanx.api.errors import ApiError
from phalanx.api.gates import Gates
from phalanx.api.kinds import KINDS
from phalanx.api.wire import Handler
from phalanx.chance import TrueChance
from phalanx.cli import background, options
from phalanx.cli.apart import Ended, attended, beside, man, settle
from phalanx.cli.configuration import load_configuration
from phalanx.cli.decisionlog import check_decision_log, decision_log, decision_log_option
from phalanx.cli.nodes import LOOPBACK, check_processes, node_options, process_host, sorted_out
from phalanx.cli.signals import signals
from phalanx.client import kubeconfig
from phalanx.clock import Clock, WallClock
from phalanx.controllers.exact import Beside, Solver
from phalanx.controllers.nodes import SimulatedNode
from phalanx.controllers.processes import Host
from phalanx.controllers.stages import Rule
from phalanx.crew import PARTS, Staff
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
    processes: bool
    programs: Path | None

    def staff(self, machine: Host | None) -> Staff:
        """Who works beside the server; on a machine that runs processes, if there is one."""
        return Staff(
            sorted_out(self.nodes, machine), self.without, self.gates, self.profiles,
            log=decision_log(self.decisions), solving=Beside(Solver()),
            basic_workloads=self.basic_workloads, stages=self.stages, host=machine,
        )  # fmt: skip


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
@click.option(
    "--detach", is_flag=True, help="Return when it is ready, and let it run until phalanx down."
)
def command(
    listen: str, names: tuple[str, ...], data: str | None, store: str, config: Path | None,
    nodes: str, shape: str, topology: str, stages: Path | None, processes: bool,
    programs: Path | None, feature_gates: str, policy: Path | None, decisions: Path | None,
    audit: str, basic: str, without: str, detach: bool,
) -> None:  # fmt: skip
    """Run an API server, with scheduler, controllers and simulated nodes beside it.

    \b
    Example:
      phalanx up --detach --nodes 100 --shape cpu=8,memory=32Gi,nvidia.com/gpu=8
      export KUBECONFIG=~/.local/state/phalanx/kubeconfig
      kubectl get nodes
      phalanx down
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
        basic == "always", audit, rules, processes, programs,
    )  # fmt: skip
    if detach:
        _detach(settings)
        return
    with _data_folder(settings) as folder, _known(settings), _crew(settings) as line:
        try:
            uvloop.run(_up(settings, folder, line))
        except Ended as error:
            raise click.ClickException(f"stopped: {error}") from None
        except (ApiError, kubeconfig.KubeconfigError) as error:
            raise click.ClickException(str(error)) from None


def _detach(settings: Settings) -> None:
    """The same in the background, once it is ready."""
    with _data_folder(settings):
        own = [word for word in sys.argv[sys.argv.index("up") + 1 :] if word != "--detach"]
        try:
            ready = background.start(own, _home(settings))
        except background.NotStarted as error:
            raise click.ClickException(str(error)) from None
    _announce(ready)


def _announce(ready: str) -> None:
    """Say that it is ready, for programs, and where the page is, for people."""
    click.echo(ready)
    page = f"{ready.split()[1]}/ui/"
    click.echo(f"page {page} (sign in with the token of the kubeconfig)", err=True)


def _known(settings: Settings) -> AbstractContextManager[None]:
    return background.registered(_home(settings))


def _home(settings: Settings) -> Path:
    """Where a control plane is looked for: in its folder, or in the user's if it keeps nothing."""
    if settings.data != MEMORY:
        return Path(settings.data).expanduser()
    place = options.state_folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place


@contextlib.contextmanager
def _crew(settings: Settings) -> Iterator[socket.socket | None]:
    """All but the server in a process of its own, if there is any; where it can be asked."""
    if settings.without >= PARTS:
        yield None
        return

    def work(sock: socket.socket) -> None:
        with process_host(settings.processes, settings.programs) as machine:
            man(sock, settings.staff(machine))

    with beside(work) as sock:
        yield sock


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


async def _up(settings: Settings, folder: Path, line: socket.socket | None) -> None:
    clock, chance = WallClock(), TrueChance()
    sock = _listen(settings)
    keyring, names = _keyring(folder), _names(settings)
    tls, authority = keyring.serving(names, clock.now())
    ends: list[Exception] = []
    async with signals() as stopped:

        def stop(error: Exception) -> None:
            if not stopped.is_set():
                ends.append(error)
                stopped.set()

        store = _open(settings, folder, stop)
        server = Server(store, clock, chance, KINDS, keyring.tokens(), settings.gates)
        hosts = (*LOCAL, *CLUSTER, *names, settings.host)
        file = settings.kubeconfig or _home(settings) / "kubeconfig"
        token = keyring.admin_token(_present_token(file), file, clock.now())
        url = _url(settings.host, sock)
        async with (
            _audited(server, settings, folder, clock) as refused,
            _serving(server, store, line, stop) as handle,
            listening(handle, server.access.authenticator, sock, tls, hosts=hosts, refused=refused),
            _beside(renewing(tls, folder, names, clock)),
        ):
            kubeconfig.write(file, url, authority.decode(), token)
            settle()
            _announce(f"ready {url} kubeconfig {file}")
            await stopped.wait()
    if ends:
        raise click.ClickException(f"stopped: {ends[0]}")


@contextlib.asynccontextmanager
async def _serving(
    server: Server, store: Store, line: socket.socket | None, stop: Callable[[Exception], None]
) -> AsyncIterator[Handler]:
    """Have the server serve its crew, if it has one; the handler for everybody else."""
    await server.start()
    if line is None:
        yield server.handle
    else:
        async with attended(server.handle, line, stop) as handle:
            yield handle
    await store.close()


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


def _names(settings: Settings) -> list[str]:
    """The names of the server beside those that every one has."""
    is_usual = settings.host in (*LOOPBACK, "0.0.0.0", "::")
    return list(settings.names) if is_usual else [settings.host, *settings.names]


def _url(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"https://[{shown}]:{port}" if ":" in shown else f"https://{shown}:{port}"
