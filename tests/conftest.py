"""Hypothesis profiles: the suite repeats the same examples, a soak generates new ones. Logging."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.workermanage import NodeManager  # type: ignore[import-untyped]

from phalanx import logs

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=20)
settings.register_profile(
    "soak", deadline=None, max_examples=5_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")
# A background process of a shell ignores SIGINT, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A worker writes its coverage when it ends; ten seconds are too few on a busy machine.
NodeManager.EXIT_TIMEOUT = 120
#: Number of collected cases of each `mostly_slow` and `mostly_soak` test: their order decides.
_cases_by_test = Counter[str]()
#: Set while workers start, and not for the tests that they run.
_NAMED_PLUGINS_ONLY = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
os.environ.pop(_NAMED_PLUGINS_ONLY, None)


def pytest_xdist_setupnodes() -> None:
    """Have the workers load the named plugins alone, as this process does.

    They do not read `addopts`, and would find our plugin by themselves: then pytest rewrites every
    module of the package under test.
    """
    os.environ[_NAMED_PLUGINS_ONLY] = "1"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import the tests in another order in each worker, if all are run.

    In a fresh checkout each worker would else compile every test, as all of them collect in the
    same order. This way each finds the bytecode of the others. What fails here fails again when it
    is collected.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if not worker or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    number, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    first = len(files) * number // count
    for file in files[first:] + files[:first]:
        name = file.relative_to(session.config.rootpath).with_suffix("").as_posix()
        with contextlib.suppress(Exception):
            importlib.import_module(name.replace("/", "."))


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, which takes a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark most cases of some tests as slow or soak, and every property as soak in its profile."""
    name, _, _ = item.nodeid.partition("[")
    if (marker := item.get_closest_marker("mostly_slow")) is not None:
        if _cases_by_test[name] % marker.kwargs["quick_every"]:
            item.add_marker("slow")
        _cases_by_test[name] += 1
    elif (marker := item.get_closest_marker("mostly_soak")) is not None:
        item.add_marker("soak" if _cases_by_test[name] % marker.kwargs["slow_every"] else "slow")
        _cases_by_test[name] += 1
    function = getattr(item, "obj", None)
    if (
        getattr(function, "is_hypothesis_test", False)
        and settings.get_current_profile_name() == "soak"
    ):
        item.add_marker("soak")


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Undo `logs.configure`, which is meant for a whole process and which commands call."""
    logger = logging.getLogger(logs.ROOT)
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    for handler in logger.handlers:
        if handler not in handlers:
            handler.close()
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)
