"""Our end of the DevTools protocol, against an engine that speaks it and is no browser."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.ui.devtools import DevTools, Refused, connected
from tests.ui.test_modules import node


@pytest.fixture
def tools() -> Iterator[DevTools]:
    words = [node(), "--inspect=127.0.0.1:0", "-e", "setInterval(() => {}, 1000)"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"ws://127\.0\.0\.1:(\d+)/", process.stderr.readline())
            assert found is not None
            with connected(int(found[1])) as tools:
                yield tools
        finally:
            process.kill()


def test_values_and_promises_come_through(tools: DevTools) -> None:
    assert tools.evaluate("1 + 1") == 2
    assert tools.until("new Promise((done) => done({a: [1]}))") == {"a": [1]}


def test_errors_and_complaints_come_through(tools: DevTools) -> None:
    with pytest.raises(Refused, match="nothing is not defined"):
        tools.evaluate("nothing.at.all")
    tools.evaluate("console.error('dear', 'me'); console.log('fine')")
    assert tools.complaints == ["dear me"]
    with pytest.raises(Refused, match=r"No\.such"):
        tools.send("No.such")
