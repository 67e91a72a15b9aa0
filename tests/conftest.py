"""How long properties are tried: the suite repeats itself, a soak never does."""

from __future__ import annotations

import gc
import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=20)
settings.register_profile(
    "soak", deadline=None, max_examples=5_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")
# What a shell starts in the background ignores ^C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: looking for garbage in it takes a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Under the soak profile every property is part of the soak."""
    function = getattr(item, "obj", None)
    if (
        getattr(function, "is_hypothesis_test", False)
        and settings.get_current_profile_name() == "soak"
    ):
        item.add_marker("soak")
