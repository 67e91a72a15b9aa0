"""What opens a server, and where it comes from: fixed, out of a file, or from a program.

`http.Http` asks a Login before every request and tells it when the server did not accept what it
gave; `kubeconfig` chooses the Login. Programs are run in `plugins`.

Programs that hand out credentials, as a kubeconfig's `exec` names them.

    kubeconfig ─▶ Plugin ─▶ run, told by $KUBERNETES_EXEC_INFO ─▶ ExecCredential ─▶ Pass

What a program says is kept until the time that it names, or until the server does not accept it.
Several requests wait for one run. A failure is kept for a moment too, so that a broken program is
not run for every request.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from phalanx.api.meta import parse_timestamp
from phalanx.api.wire import Object
from phalanx.clock import Clock

#: Seconds after which a token that is kept in a file is read again: it may have been replaced.
_TOKEN_FILE_TTL = 60.0


@dataclass(frozen=True, slots=True)
class Credential:
    """A token, a client certificate (in `tls`), both or neither."""

    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


class CredentialError(Exception):
    """A credential could not be had: in one sentence."""


class CredentialSource(Protocol):
    """Where a Pass comes from."""

    async def get(self) -> Credential:
        """What to show now. Raises NoCredential."""
        ...

    def invalidate(self, rejected: Credential) -> bool:
        """The server did not accept that; whether there may be something better next time."""
        ...


class StaticCredential:
    """Always the same."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def get(self) -> Credential:
        """What it always is."""
        return self._credential

    def invalidate(self, rejected: Credential) -> bool:
        """There is nothing else."""
        return False


class TokenFileCredential:
    """The token in a file, read again every so often; the last one stays if that fails."""

    def __init__(self, path: Path, initial: Credential) -> None:
        self._path, self._credential, self._read_at = path, initial, -_TOKEN_FILE_TTL

    async def get(self) -> Credential:
        """The token as it stands there, or stood there a while ago."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= _TOKEN_FILE_TTL:
            self._read_at = now
            self._reload()
        return self._credential

    def invalidate(self, rejected: Credential) -> bool:
        """Look whether there is another one already."""
        self._reload()
        return self._credential.token != rejected.token

    def _reload(self) -> None:
        with suppress(OSError, UnicodeDecodeError):
            token = self._path.read_text().strip()
            self._credential = Credential(token or self._credential.token, self._credential.tls)


@dataclass(frozen=True, slots=True)
class ServerTrust:
    """By what a server must prove who it is: an authority, or nothing at all if `insecure`."""

    ca: str = field(default="", repr=False)
    insecure: bool = False

    def ssl_context(self, certificate: str = "", key: str = "") -> ssl.SSLContext:
        """That for a connection, with a client certificate of ours. Raises ValueError."""
        try:
            return self._create_context(certificate, key)
        except ssl.SSLError as error:
            raise ValueError(str(error)) from error

    def _create_context(self, certificate: str, key: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca or None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            # OpenSSL takes it from a file only; given an empty password, it does not ask for one.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{certificate}\n{key}")
                file.flush()
                context.load_cert_chain(file.name, password="")
        return context


_API_GROUP = "client.authentication.k8s.io"
EXEC_API_VERSIONS = (f"{_API_GROUP}/v1", f"{_API_GROUP}/v1beta1")
INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")
#: The name under which a cluster has something to say to the plugins of its users.
EXEC_EXTENSION = f"{_API_GROUP}/exec"
#: Seconds that a program which asks nobody may take, and for which a failure is believed.
PLUGIN_TIMEOUT, PLUGIN_FAILURE_TTL = 60.0, 1.0


class InvalidPlugin(Exception):
    """What a kubeconfig says of a plugin cannot be used: the end of a sentence about it."""


@dataclass(frozen=True, slots=True)
class CredentialPlugin:
    """A program, how it is called, and what it is told of the cluster (None: nothing)."""

    version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    cluster: Mapping[str, Any] | None = None

    def exec_info(self, *, interactive: bool) -> str:
        """What it is asked for, as $KUBERNETES_EXEC_INFO says it."""
        spec: Object = {"interactive": interactive}
        if self.cluster is not None:
            spec["cluster"] = dict(self.cluster)
        asked = {"kind": "ExecCredential", "apiVersion": self.version, "spec": spec}
        return msgspec.json.encode(asked).decode()


class _ExecSpec(Struct, frozen=True, rename="camel"):
    api_version: str = ""
    command: str = ""
    args: list[str] | None = None
    env: list[dict[str, str]] | None = None
    install_hint: str = ""
    interactive_mode: str = ""
    provide_cluster_info: bool = False


class _ExecStatus(Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str = ""


class _ExecCredential(Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


def parse_plugin(content: object, folder: Path, cluster: Mapping[str, Any]) -> CredentialPlugin:
    """The plugin that a kubeconfig in a folder describes. Raises BadPlugin."""
    try:
        spec = msgspec.convert(content, _ExecSpec)
    except msgspec.ValidationError as error:
        raise InvalidPlugin(f"cannot be read: {error}") from error
    _check_spec(spec)
    command = spec.command
    if os.sep in command:
        # Beside the kubeconfig; a bare name is looked for on the path.
        command = str(folder / command)
    env = tuple((row.get("name", ""), row.get("value", "")) for row in spec.env or ())
    return CredentialPlugin(
        spec.api_version, command, tuple(spec.args or ()), env, spec.install_hint.strip(),
        spec.interactive_mode or "IfAvailable", cluster if spec.provide_cluster_info else None,
    )  # fmt: skip


def _check_spec(spec: _ExecSpec) -> None:
    version, mode = spec.api_version, spec.interactive_mode
    problems = (
        ("has no command", not spec.command),
        (f"has the apiVersion {version!r}, not one of {', '.join(EXEC_API_VERSIONS)}",
         version not in EXEC_API_VERSIONS),
        (f"must say its interactiveMode: one of {', '.join(INTERACTIVE_MODES)}",
         version == EXEC_API_VERSIONS[0] and not mode),
        (f"has the interactiveMode {mode!r}, not one of {', '.join(INTERACTIVE_MODES)}",
         bool(mode) and mode not in INTERACTIVE_MODES),
    )  # fmt: skip
    for problem, is_there in problems:
        if is_there:
            raise InvalidPlugin(problem)


class PluginCredential:
    """A Login whose credentials come from a program."""

    def __init__(self, plugin: CredentialPlugin, trust: ServerTrust | None, clock: Clock) -> None:
        self._plugin, self._trust, self._clock = plugin, trust, clock
        self._running = asyncio.Lock()
        self._credential: Credential | None = None
        self._expires_at = float("inf")
        self._failure: tuple[float, CredentialError] | None = None

    async def get(self) -> Credential:
        """What the program said, if that still holds; else what it says now."""
        async with self._running:
            if self._credential is None or self._clock.now() >= self._expires_at:
                self._credential = await self._fetch()
            return self._credential

    def invalidate(self, rejected: Credential) -> bool:
        """Have the program run again, unless that has been done since."""
        if self._credential is rejected:
            self._credential = None
        return True

    async def _fetch(self) -> Credential:
        loop = asyncio.get_running_loop()
        if self._failure is not None and loop.time() < self._failure[0]:
            raise self._failure[1]
        self._failure = None
        try:
            return self._credential_from_status(
                _decode_credential(await _run_plugin(self._plugin), self._plugin)
            )
        except CredentialError as error:
            self._failure = loop.time() + PLUGIN_FAILURE_TTL, error
            raise

    def _credential_from_status(self, found: _ExecStatus) -> Credential:
        name = self._plugin.command
        certificate, key = found.client_certificate_data, found.client_key_data
        try:
            ends = found.expiration_timestamp
            self._expires_at = parse_timestamp(ends) if ends else float("inf")
            tls = self._trust.ssl_context(certificate, key) if self._trust else None
        except ValueError as error:
            raise CredentialError(f"what {name} answered cannot be used: {error}") from error
        return Credential(found.token, tls)


async def _run_plugin(plugin: CredentialPlugin) -> bytes:
    """What the program writes. Where there is a terminal and it may, it talks to the user."""
    interactive = (
        plugin.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
    )
    if plugin.interactive_mode == "Always" and not interactive:
        raise CredentialError(f"{plugin.command} wants to ask the user, but there is no terminal")
    told = {**dict(plugin.env), "KUBERNETES_EXEC_INFO": plugin.exec_info(interactive=interactive)}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command, *plugin.args, env={**os.environ, **told},
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        why = f"{plugin.command} cannot be run: {error.strerror}"
        raise CredentialError(
            f"{why}; {plugin.install_hint}" if plugin.install_hint else why
        ) from error
    try:
        async with asyncio.timeout(None if interactive else PLUGIN_TIMEOUT):
            written, _ = await process.communicate()
    except TimeoutError:
        raise CredentialError(
            f"{plugin.command} did not end within {PLUGIN_TIMEOUT:.0f} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise CredentialError(f"{plugin.command} failed with exit code {process.returncode}")
    return written


def _decode_credential(written: bytes, plugin: CredentialPlugin) -> _ExecStatus:
    try:
        answer = msgspec.json.decode(written, type=_ExecCredential)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CredentialError(
            f"{plugin.command} did not answer an ExecCredential: {error}"
        ) from error
    status = answer.status or _ExecStatus()
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
            raise CredentialError(f"{plugin.command} {problem}")
    return status
