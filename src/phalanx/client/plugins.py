"""Programs that hand out credentials, as a kubeconfig's `exec` names them.

    kubeconfig ─▶ Plugin ─▶ run, told by $KUBERNETES_EXEC_INFO ─▶ ExecCredential ─▶ Pass

What a program says is kept until the time that it names, or until the server does not accept it.
Several requests wait for one run. A failure is kept for a moment too, so that a broken program is
not run for every request.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from phalanx.api.meta import seconds
from phalanx.api.wire import Object
from phalanx.client.credentials import NoCredential, Pass, Trust
from phalanx.clock import Clock

_GROUP = "client.authentication.k8s.io"
VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
MODES = ("Never", "IfAvailable", "Always")
#: The name under which a cluster has something to say to the plugins of its users.
EXTENSION = f"{_GROUP}/exec"
#: Seconds that a program which asks nobody may take, and for which a failure is believed.
LIMIT, PAUSE = 60.0, 1.0


class BadPlugin(Exception):
    """What a kubeconfig says of a plugin cannot be used: the end of a sentence about it."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A program, how it is called, and what it is told of the cluster (None: nothing)."""

    version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    hint: str = ""
    mode: str = "IfAvailable"
    cluster: Mapping[str, Any] | None = None

    def task(self, *, interactive: bool) -> str:
        """What it is asked for, as $KUBERNETES_EXEC_INFO says it."""
        spec: Object = {"interactive": interactive}
        if self.cluster is not None:
            spec["cluster"] = dict(self.cluster)
        asked = {"kind": "ExecCredential", "apiVersion": self.version, "spec": spec}
        return msgspec.json.encode(asked).decode()


class _Spec(Struct, frozen=True, rename="camel"):
    api_version: str = ""
    command: str = ""
    args: list[str] | None = None
    env: list[dict[str, str]] | None = None
    install_hint: str = ""
    interactive_mode: str = ""
    provide_cluster_info: bool = False


class _Status(Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str = ""


class _Answer(Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


def read_plugin(content: object, folder: Path, cluster: Mapping[str, Any]) -> Plugin:
    """The plugin that a kubeconfig in a folder describes. Raises BadPlugin."""
    try:
        spec = msgspec.convert(content, _Spec)
    except msgspec.ValidationError as error:
        raise BadPlugin(f"cannot be read: {error}") from error
    _check(spec)
    command = spec.command
    if os.sep in command:
        # Beside the kubeconfig; a bare name is looked for on the path.
        command = str(folder / command)
    env = tuple((row.get("name", ""), row.get("value", "")) for row in spec.env or ())
    return Plugin(
        spec.api_version, command, tuple(spec.args or ()), env, spec.install_hint.strip(),
        spec.interactive_mode or "IfAvailable", cluster if spec.provide_cluster_info else None,
    )  # fmt: skip


def _check(spec: _Spec) -> None:
    version, mode = spec.api_version, spec.interactive_mode
    problems = (
        ("has no command", not spec.command),
        (f"has the apiVersion {version!r}, not one of {', '.join(VERSIONS)}",
         version not in VERSIONS),
        (f"must say its interactiveMode: one of {', '.join(MODES)}",
         version == VERSIONS[0] and not mode),
        (f"has the interactiveMode {mode!r}, not one of {', '.join(MODES)}",
         bool(mode) and mode not in MODES),
    )  # fmt: skip
    for problem, is_there in problems:
        if is_there:
            raise BadPlugin(problem)


class PluginLogin:
    """A Login whose credentials come from a program."""

    def __init__(self, plugin: Plugin, trust: Trust | None, clock: Clock) -> None:
        self._plugin, self._trust, self._clock = plugin, trust, clock
        self._running = asyncio.Lock()
        self._pass: Pass | None = None
        self._until = float("inf")
        self._failure: tuple[float, NoCredential] | None = None

    async def enter(self) -> Pass:
        """What the program said, if that still holds; else what it says now."""
        async with self._running:
            if self._pass is None or self._clock.now() >= self._until:
                self._pass = await self._asked()
            return self._pass

    def refused(self, shown: Pass) -> bool:
        """Have the program run again, unless that has been done since."""
        if self._pass is shown:
            self._pass = None
        return True

    async def _asked(self) -> Pass:
        loop = asyncio.get_running_loop()
        if self._failure is not None and loop.time() < self._failure[0]:
            raise self._failure[1]
        self._failure = None
        try:
            return self._entry(_read(await _run(self._plugin), self._plugin))
        except NoCredential as error:
            self._failure = loop.time() + PAUSE, error
            raise

    def _entry(self, found: _Status) -> Pass:
        name = self._plugin.command
        certificate, key = found.client_certificate_data, found.client_key_data
        try:
            ends = found.expiration_timestamp
            self._until = seconds(ends) if ends else float("inf")
            tls = self._trust.context(certificate, key) if self._trust else None
        except ValueError as error:
            raise NoCredential(f"what {name} answered cannot be used: {error}") from error
        return Pass(found.token, tls)


async def _run(plugin: Plugin) -> bytes:
    """What the program writes. Where there is a terminal and it may, it talks to the user."""
    interactive = plugin.mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
    if plugin.mode == "Always" and not interactive:
        raise NoCredential(f"{plugin.command} wants to ask the user, but there is no terminal")
    told = {**dict(plugin.env), "KUBERNETES_EXEC_INFO": plugin.task(interactive=interactive)}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command, *plugin.args, env={**os.environ, **told},
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        why = f"{plugin.command} cannot be run: {error.strerror}"
        raise NoCredential(f"{why}; {plugin.hint}" if plugin.hint else why) from error
    try:
        async with asyncio.timeout(None if interactive else LIMIT):
            written, _ = await process.communicate()
    except TimeoutError:
        raise NoCredential(f"{plugin.command} did not end within {LIMIT:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise NoCredential(f"{plugin.command} failed with exit code {process.returncode}")
    return written


def _read(written: bytes, plugin: Plugin) -> _Status:
    try:
        answer = msgspec.json.decode(written, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NoCredential(f"{plugin.command} did not answer an ExecCredential: {error}") from error
    status = answer.status or _Status()
    has_pair = bool(status.client_certificate_data), bool(status.client_key_data)
    problems = (
        (f"answered a {answer.kind or 'nameless object'}, not an ExecCredential",
         answer.kind != "ExecCredential"),
        (f"answered in the version {answer.api_version!r}, not {plugin.version!r}",
         answer.api_version != plugin.version),
        ("answered neither a token nor a client certificate", not (status.token or any(has_pair))),
        ("answered only one of client certificate and key", has_pair[0] != has_pair[1]),
    )  # fmt: skip
    for problem, is_there in problems:
        if is_there:
            raise NoCredential(f"{plugin.command} {problem}")
    return status
