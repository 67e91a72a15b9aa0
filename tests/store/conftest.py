"""The stores that must all behave alike: a new one is a new row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from phalanx.store.kv import Store
from phalanx.store.memory import MemoryStore
from tests.store.sqlite_stores import create_sqlite_store

#: Makes an empty store whose commits take the seconds that the function says.
Make = Callable[[Callable[[], float]], Store]

STORES: dict[str, Make] = {"memory": MemoryStore, "sqlite": create_sqlite_store}


@pytest.fixture(params=list(STORES.values()), ids=list(STORES))
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made
