"""The pytest plugin: a control plane for each test that asks for one, judged when the test is over.

pytest finds it by its entry point. The rest of this package, and all of ours, is imported when a
test asks for a control plane and not before: runs without one pay nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from phalanx.testing.blocking import Phalanx
    from phalanx.testing.cluster import Cluster
    from phalanx.testing.served import ServerIdentity
    from phalanx.testing.settings import Settings

#: What a test was given, by the name of the fixture, and how it asked for it.
_CLUSTERS = pytest.StashKey[dict[str | None, tuple["Phalanx", "Settings"]]]()
_MARKER_HELP = (
    "phalanx(nodes=0, room={}, gates={}, without=[], invariants=True, virtual=False, seed=1): "
    "what the control plane of a test is like."
)
_NOT_ASYNC = (
    "a test that asks for phalanx_virtual is `async def`; "
    "one that is not asks for phalanx and is marked @pytest.mark.phalanx(virtual=True)"
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _MARKER_HELP)


@pytest.fixture(scope="session")
def _phalanx_identity(tmp_path_factory: pytest.TempPathFactory) -> ServerIdentity:
    from phalanx.testing.served import ServerIdentity

    return ServerIdentity.create(tmp_path_factory.mktemp("phalanx-identity"))


@pytest.fixture
def phalanx(request: pytest.FixtureRequest) -> Iterator[Phalanx]:
    """A private control plane: on a port, with a kubeconfig, or in virtual time if so marked."""
    from phalanx.testing.served import serving
    from phalanx.testing.virtual import virtually

    settings = _settings_from_markers(request.node)
    with ExitStack() as stack:
        found: Phalanx
        if settings.virtual:
            found = stack.enter_context(virtually(settings))
        else:
            identity = request.getfixturevalue("_phalanx_identity")
            folder = request.getfixturevalue("tmp_path_factory").mktemp("phalanx")
            found = stack.enter_context(serving(settings, folder, identity))
        _remember(request, found, settings)
        yield found


@pytest.fixture
def phalanx_virtual(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A private control plane in virtual time, for a test that is `async def`."""
    from phalanx.testing.virtual import virtually

    settings = _settings_from_markers(request.node)
    with virtually(settings) as found:
        _remember(request, found, settings)
        yield found.cluster


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on the loop of its control plane."""
    if "phalanx_virtual" not in pyfuncitem.fixturenames:
        return None
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        pytest.fail(_NOT_ASYNC, pytrace=False)
    found, _ = pyfuncitem.stash[_CLUSTERS]["phalanx_virtual"]
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    found.drive(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge the cluster of a test that passed, while it is still there."""
    result = yield
    for found, settings in item.stash.get(_CLUSTERS, {}).values():
        wrongs = found.wrongs() if settings.invariants else []
        if wrongs:
            pytest.fail("\n".join(["the cluster is not as it must be:", *wrongs]), pytrace=False)
    return result


def _settings_from_markers(item: pytest.Item) -> Settings:
    """What the markers of a test ask for; the nearest counts."""
    from phalanx.testing.settings import Settings

    marks = reversed(list(item.iter_markers("phalanx")))
    said = {name: value for mark in marks for name, value in mark.kwargs.items()}
    try:
        return Settings.of(said)
    except ValueError as error:
        sentence = f"@pytest.mark.phalanx of {item.nodeid}: {error}"
        raise pytest.fail.Exception(sentence, pytrace=False) from None


def _remember(request: pytest.FixtureRequest, found: Phalanx, settings: Settings) -> None:
    """Let the hooks of this test know what a fixture gave it."""
    request.node.stash.setdefault(_CLUSTERS, {})[request.fixturename] = (found, settings)
