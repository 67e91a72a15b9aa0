"""`pytest tests/sim --update` rewrites the expected timelines; review the diff like code."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the expected timelines")


@pytest.fixture
def is_update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update", default=False))
