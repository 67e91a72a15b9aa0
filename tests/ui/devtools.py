"""A program that speaks the DevTools protocol: asked over a websocket, and what it complains of."""

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

#: Seconds that an answer, and anything that is waited for, is given.
PATIENCE = 20.0
#: Keys that a browser knows by number only.
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40}


class Refused(Exception):
    """What the program says instead of an answer."""


class DevTools:
    """One page, or one program, asked one thing after the other."""

    def __init__(self, runner: asyncio.Runner, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._runner, self._socket = runner, socket
        self._numbers = itertools.count(1)
        #: Errors of scripts and on the console, violations of the policy, up to the last answer.
        self.complaints: list[str] = []

    def send(self, method: str, **words: object) -> dict[str, Any]:
        """One command and what it gives."""
        answer = self._runner.run(self._exchanged(method, words))
        if "error" in answer:
            raise Refused(f"{method}: {answer['error']['message']}")
        found: dict[str, Any] = answer["result"]
        return found

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; what it promises, if it is a promise."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise Refused(_told(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true; what it gives then."""
        end = time.monotonic() + PATIENCE
        while not (found := self.evaluate(expression)):
            assert time.monotonic() < end, f"never came: {expression}; {self.complaints}"
            time.sleep(0.05)
        return found

    def press(self, key: str) -> None:
        """A key, down and up."""
        code = _KEYS.get(key)
        words = {"windowsVirtualKeyCode": code, "code": key} if code else {"text": key}
        for way in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=way, key=key, **words)

    def picture(self, file: Path) -> None:
        """What is to be seen, as a PNG file."""
        answer = self.send("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(answer["data"]))

    async def _exchanged(self, method: str, words: Mapping[str, object]) -> dict[str, Any]:
        number = next(self._numbers)
        async with asyncio.timeout(PATIENCE):
            await self._socket.send_json({"id": number, "method": method, "params": words})
            while True:
                said: dict[str, Any] = await self._socket.receive_json()
                if said.get("id") == number:
                    return said
                self._hear(said["method"], said["params"])

    def _hear(self, method: str, told: Mapping[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(_told(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.complaints.append(" ".join(str(one.get("value", one)) for one in told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(told["entry"]["text"])


@contextmanager
def connected(port: int) -> Iterator[DevTools]:
    """The first page, or program, that listens there."""
    with asyncio.Runner() as runner:
        session, socket = runner.run(_opened(port))
        try:
            found = DevTools(runner, socket)
            found.send("Runtime.enable")
            yield found
        finally:
            runner.run(_closed(session, socket))


async def _opened(port: int) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession()
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        targets: list[dict[str, str]] = await answer.json(content_type=None)
    first = next(one for one in targets if one["type"] in ("page", "node"))
    return session, await session.ws_connect(first["webSocketDebuggerUrl"], max_msg_size=0)


async def _closed(session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
    await socket.close()
    await session.close()


def _told(details: Mapping[str, Any]) -> str:
    return str(details.get("exception", {}).get("description", details["text"]))
