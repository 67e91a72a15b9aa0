"""`phalanx up`: a whole control plane in the foreground."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli import background, options
from phalanx.cli.apart import beside
from phalanx.cli.decisionlog import check_decision_log, decision_log_option
from phalanx.cli.nodes import check_processes, node_options
from phalanx.cli.settings import MEMORY, Settings
from phalanx.server.security.privacy import Exposed, check_private

if TYPE_CHECKING:
    from phalanx.scheduler.settings.profiles import Profiles

_AUDIT = "audit.log"


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
    # Until it is ready there is no garbage to look for; `settle` sees to it then.
    gc.disable()
    host, port = options.address(listen)
    left_out, gates = options.parts(without), options.feature_gates(feature_gates)
    wanted = options.nodes(nodes, options.shape(shape), options.topology(topology))
    rules = options.stage_rules(stages)
    check_processes(processes, programs, host)
    place = data or str(options.state_folder())
    kept = store or ("memory" if place == MEMORY else "sqlite")
    if place == MEMORY and kept != "memory":
        raise click.UsageError(f"--data {MEMORY} keeps nothing; give --store {kept} a folder")
    profiles = _profiles(policy) if policy else None
    check_decision_log(decisions)
    settings = Settings(
        host, port, names, place, kept, config, wanted, left_out, gates, profiles, decisions,
        basic == "always", audit, rules, processes, programs,
    )  # fmt: skip
    if detach:
        _detach(settings)
        return
    with (
        _data_folder(settings) as folder,
        background.registered(settings.home()),
        _crew(settings) as line,
    ):
        # Only now, while the crew's process loads its own half.
        from phalanx.cli.serving import serve

        serve(settings, folder, line)


def _profiles(policy: Path) -> Profiles:
    """How pods are placed by a file; loaded here only to tell whoever typed it what is wrong."""
    from phalanx.cli.configuration import load_configuration

    return load_configuration(policy).profiles


def _detach(settings: Settings) -> None:
    """The same in the background, once it is ready."""
    with _data_folder(settings):
        own = [word for word in sys.argv[sys.argv.index("up") + 1 :] if word != "--detach"]
        try:
            ready = background.start(own, settings.home())
        except background.NotStarted as error:
            raise click.ClickException(str(error)) from None
    background.announce(ready)


@contextlib.contextmanager
def _crew(settings: Settings) -> Iterator[socket.socket | None]:
    """All but the server in a process of its own, if there is any; where it can be asked."""
    if settings.without.issuperset(options.PARTS):
        yield None
        return

    def work(sock: socket.socket) -> None:
        from phalanx.cli.crewed import man

        man(sock, settings)

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
