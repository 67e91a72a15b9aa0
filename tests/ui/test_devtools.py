"""The DevTools client with node, which speaks the protocol too."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.ui.devtools import DevTools, DevToolsError, connected
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


def test_devtools_returns_values_and_promises(tools: DevTools) -> None:
    assert tools.evaluate("1 + 1") == 2
    assert tools.until("new Promise((done) => done({a: [1]}))") == {"a": [1]}


def test_devtools_reports_errors_and_console_messages(tools: DevTools) -> None:
    with pytest.raises(DevToolsError, match="nothing is not defined"):
        tools.evaluate("nothing.at.all")
    tools.evaluate("console.error('an', 'error'); console.log('fine')")
    assert tools.errors == ["an error"]
    with pytest.raises(DevToolsError, match=r"No\.such"):
        tools.send("No.such")
