"""Hypothesis profiles: the suite repeats the same examples, a soak generates new ones. Logging."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator

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


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, which takes a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every property test as soak under the soak profile."""
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
