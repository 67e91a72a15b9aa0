"""A client of the DevTools protocol over a websocket, which also records errors of the page."""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

#: Seconds until a reply, or anything else that is waited for, is overdue.
TIMEOUT = 240.0
#: Key codes of keys without a text.
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40}


class DevToolsError(Exception):
    """An error reply, or an exception in the page."""


class DevTools:
    """A connection to one page or program; one command at a time."""

    def __init__(self, runner: asyncio.Runner, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._runner, self._socket = runner, socket
        self._numbers = itertools.count(1)
        #: Script errors, console errors and policy violations so far.
        self.errors: list[str] = []
        #: The events of a trace so far, and whether it is complete.
        self._trace: list[dict[str, Any]] = []
        self._is_traced = False

    def send(self, method: str, **words: object) -> dict[str, Any]:
        """Send a command and return its result."""
        answer = self._runner.run(self._exchange(method, words))
        if "error" in answer:
            raise DevToolsError(f"{method}: {answer['error']['message']}")
        found: dict[str, Any] = answer["result"]
        return found

    def evaluate(self, expression: str) -> Any:
        """Evaluate an expression; await it if it is a promise."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise DevToolsError(_error_text(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true and return its value."""
        end = time.monotonic() + TIMEOUT
        while not (found := self.evaluate(expression)):
            assert time.monotonic() < end, f"never true: {expression}; {set(self.errors)}"
            time.sleep(0.05)
        return found

    @contextmanager
    def task_times(self) -> Iterator[list[float]]:
        """Yield a list that has the CPU time of each task of the page, in ms, after the context.

        CPU time says how much a page does, whatever else the machine does meanwhile.
        """
        self._trace, self._is_traced, times = [], False, list[float]()
        self.send("Tracing.start", categories="toplevel", transferMode="ReportEvents")
        yield times
        self.send("Tracing.end")
        while not self._is_traced:
            self.evaluate("0")
        names = {
            (one["pid"], one["tid"]): one["args"]["name"]
            for one in self._trace
            if one.get("name") == "thread_name"
        }
        times += [
            one.get("tdur", 0) / 1000
            for one in self._trace
            if one.get("name") == "ThreadControllerImpl::RunTask"
            and names.get((one["pid"], one["tid"])) == "CrRendererMain"
        ]

    def press(self, key: str) -> None:
        """Press and release a key."""
        code = _KEYS.get(key)
        words = {"windowsVirtualKeyCode": code, "code": key} if code else {"text": key}
        if key == "Enter":
            # Buttons and links react to the character.
            words["text"] = "\r"
        for way in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=way, key=key, **words)

    def screenshot(self, file: Path) -> None:
        """Write a screenshot as a PNG file."""
        answer = self.send("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(answer["data"]))

    async def _exchange(self, method: str, words: Mapping[str, object]) -> dict[str, Any]:
        number = next(self._numbers)
        async with asyncio.timeout(TIMEOUT):
            await self._socket.send_json({"id": number, "method": method, "params": words})
            while True:
                message: dict[str, Any] = await self._socket.receive_json()
                if message.get("id") == number:
                    return message
                self._record(message["method"], message["params"])

    def _record(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Tracing.dataCollected":
            self._trace += params["value"]
        elif method == "Tracing.tracingComplete":
            self._is_traced = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(_error_text(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(one.get("value", one)) for one in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])


@contextmanager
def connected(port: int) -> Iterator[DevTools]:
    """Connect to the first page or program on a port."""
    with asyncio.Runner() as runner:
        session, socket = runner.run(_open(port))
        try:
            found = DevTools(runner, socket)
            found.send("Runtime.enable")
            yield found
        finally:
            runner.run(_close(session, socket))


async def _open(port: int) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession()
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        targets: list[dict[str, str]] = await answer.json(content_type=None)
    first = next(one for one in targets if one["type"] in ("page", "node"))
    return session, await session.ws_connect(first["webSocketDebuggerUrl"], max_msg_size=0)


async def _close(session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
    await socket.close()
    await session.close()


def _error_text(details: Mapping[str, Any]) -> str:
    return str(details.get("exception", {}).get("description", details["text"]))
