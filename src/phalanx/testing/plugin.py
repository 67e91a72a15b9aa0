"""The pytest plugin: the fixtures `phalanx` and `phalanx_virtual`, and the check after each test.

pytest finds the plugin by its entry point in every run. The rest of the package is imported only
when a test uses a fixture, so that other runs do not get slower.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from phalanx.testing.blocking import Phalanx, ServerIdentity
    from phalanx.testing.cluster import Cluster, Settings

#: The control planes of a test and their settings, by the name of the fixture.
_CLUSTERS = pytest.StashKey[dict[str | None, tuple["Phalanx", "Settings"]]]()
#: Whether the test itself has failed.
_FAILED = pytest.StashKey[bool]()
_MARKER_HELP = (
    "phalanx(nodes=0, room={}, gates={}, without=[], invariants=True, virtual=False, seed=1): "
    "settings of the test's control plane."
)
_NOT_ASYNC = (
    "a test that uses phalanx_virtual must be `async def`; another test uses phalanx and "
    "@pytest.mark.phalanx(virtual=True)"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; refuse options that exclude each other."""
    config.addinivalue_line("markers", _MARKER_HELP)
    if config.getoption("--phalanx-keep") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--phalanx-keep waits for ^C: use it without -n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    parser.getgroup("phalanx").addoption(
        "--phalanx-keep",
        action="store_true",
        help="after a test that failed, keep its control plane until ^C and print its kubeconfig",
    )


@pytest.fixture(scope="session")
def _phalanx_identity(tmp_path_factory: pytest.TempPathFactory) -> ServerIdentity:
    from phalanx.testing.blocking import ServerIdentity

    return ServerIdentity.create(tmp_path_factory.mktemp("phalanx-identity"))


@pytest.fixture
def phalanx(request: pytest.FixtureRequest) -> Iterator[Phalanx]:
    """A control plane for one test: on a port, with a kubeconfig, or in virtual time if marked."""
    from phalanx.testing.blocking import serving, virtually

    settings = _settings_from_markers(request.node)
    with ExitStack() as stack:
        cluster: Phalanx
        if settings.virtual:
            cluster = stack.enter_context(virtually(settings))
        else:
            identity = request.getfixturevalue("_phalanx_identity")
            folder = request.getfixturevalue("tmp_path_factory").mktemp("phalanx")
            cluster = stack.enter_context(serving(settings, folder, identity))
        _remember(request, cluster, settings)
        yield cluster
        if request.config.getoption("--phalanx-keep") and request.node.stash.get(_FAILED, False):
            _keep(request, cluster)


def _keep(request: pytest.FixtureRequest, cluster: Phalanx) -> None:
    """Leave the control plane of a failed test running until ^C, which ends the run."""
    from phalanx.testing.blocking import Served

    if not isinstance(cluster, Served):
        return
    plugins = request.config.pluginmanager
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        reporter = plugins.getplugin("terminalreporter")
        reporter.write_line(f"\n{request.node.nodeid} failed; its control plane runs until ^C:")
        reporter.write_line(f"  export KUBECONFIG={cluster.kubeconfig}")
        reporter.flush()
        Event().wait()


@pytest.fixture
def phalanx_virtual(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A control plane in virtual time for one `async def` test."""
    from phalanx.testing.blocking import virtually

    settings = _settings_from_markers(request.node)
    with virtually(settings) as virtual:
        _remember(request, virtual, settings)
        yield virtual.cluster


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on the event loop of its control plane."""
    if "phalanx_virtual" not in pyfuncitem.fixturenames:
        return None
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        pytest.fail(_NOT_ASYNC, pytrace=False)
    cluster, _ = pyfuncitem.stash[_CLUSTERS]["phalanx_virtual"]
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    cluster.drive(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note for the fixture whether the test has failed."""
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Check the cluster's invariants after a test that passed, while the cluster still runs."""
    result = yield
    for cluster, settings in item.stash.get(_CLUSTERS, {}).values():
        violations = cluster.wrongs() if settings.invariants else []
        if violations:
            pytest.fail("\n".join(["cluster invariants are violated:", *violations]), pytrace=False)
    return result


def _settings_from_markers(item: pytest.Item) -> Settings:
    """Merge the markers of a test; the nearest marker wins."""
    from phalanx.testing.cluster import Settings

    markers = list(item.iter_markers("phalanx"))
    arguments = {
        name: value for marker in reversed(markers) for name, value in marker.kwargs.items()
    }
    try:
        if any(marker.args for marker in markers):
            raise ValueError("settings are keyword arguments: nodes=3")
        return Settings.of(arguments)
    except ValueError as error:
        message = f"@pytest.mark.phalanx of {item.nodeid}: {error}"
        raise pytest.fail.Exception(message, pytrace=False) from None


def _remember(request: pytest.FixtureRequest, cluster: Phalanx, settings: Settings) -> None:
    """Store a fixture's control plane for the hooks of this test."""
    request.node.stash.setdefault(_CLUSTERS, {})[request.fixturename] = (cluster, settings)
