"""Credentials: static, from a token file, or from an exec plugin.

`HttpTransport` asks a `CredentialSource` before every request and invalidates it when the server
answers 401; `kubeconfig` chooses the source.

    kubeconfig ─▶ CredentialPlugin ─▶ process with $KUBERNETES_EXEC_INFO ─▶ ExecCredential

A plugin's credential is cached until it expires or is invalidated. Concurrent requests share one
run of the plugin. A failure is cached for a moment, so that a broken plugin does not run for every
request.
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

#: Seconds after which a token file is read again: it may have been rotated.
_TOKEN_FILE_TTL = 60.0


@dataclass(frozen=True, slots=True)
class Credential:
    """A token, a client certificate (in `tls`), both or neither."""

    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


class CredentialError(Exception):
    """A credential could not be obtained; the message is one sentence."""


class CredentialSource(Protocol):
    """Provides the credential for requests."""

    async def get(self) -> Credential:
        """Return the current credential. Raises CredentialError."""
        ...

    def invalidate(self, rejected: Credential) -> bool:
        """Drop a credential that the server rejected; return whether another may be available."""
        ...


class StaticCredential:
    """A credential that never changes."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def get(self) -> Credential:
        """Return the credential."""
        return self._credential

    def invalidate(self, rejected: Credential) -> bool:
        """Return False: there is no other."""
        return False


class TokenFileCredential:
    """The token in a file, read again regularly; the last token stays if reading fails."""

    def __init__(self, path: Path, initial: Credential) -> None:
        self._path, self._credential, self._read_at = path, initial, -_TOKEN_FILE_TTL

    async def get(self) -> Credential:
        """Return the token of the file, cached for a minute."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= _TOKEN_FILE_TTL:
            self._read_at = now
            self._reload()
        return self._credential

    def invalidate(self, rejected: Credential) -> bool:
        """Read the file again; return whether the token has changed."""
        self._reload()
        return self._credential.token != rejected.token

    def _reload(self) -> None:
        with suppress(OSError, UnicodeDecodeError):
            token = self._path.read_text().strip()
            self._credential = Credential(token or self._credential.token, self._credential.tls)


@dataclass(frozen=True, slots=True)
class ServerTrust:
    """How the server is verified: by a CA, by the system's CAs, or not at all (`insecure`)."""

    ca: str = field(default="", repr=False)
    insecure: bool = False

    def ssl_context(self, certificate: str = "", key: str = "") -> ssl.SSLContext:
        """Return the TLS context, with a client certificate if given. Raises ValueError."""
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
            # OpenSSL reads a key from a file only; an empty password prevents a prompt.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{certificate}\n{key}")
                file.flush()
                context.load_cert_chain(file.name, password="")
        return context


_API_GROUP = "client.authentication.k8s.io"
EXEC_API_VERSIONS = (f"{_API_GROUP}/v1", f"{_API_GROUP}/v1beta1")
INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")
#: The cluster extension whose content is passed to exec plugins.
EXEC_EXTENSION = f"{_API_GROUP}/exec"
#: Seconds for a plugin without interaction, and for which a failure is cached.
PLUGIN_TIMEOUT, PLUGIN_FAILURE_TTL = 60.0, 1.0


class InvalidPlugin(Exception):
    """An exec plugin that cannot be used; the message completes a sentence about it."""


@dataclass(frozen=True, slots=True)
class CredentialPlugin:
    """An exec plugin: command, arguments, and the cluster information that it receives."""

    version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    cluster: Mapping[str, Any] | None = None

    def exec_info(self, *, interactive: bool) -> str:
        """Return the content of $KUBERNETES_EXEC_INFO."""
        spec: Object = {"interactive": interactive}
        if self.cluster is not None:
            spec["cluster"] = dict(self.cluster)
        credential = {"kind": "ExecCredential", "apiVersion": self.version, "spec": spec}
        return msgspec.json.encode(credential).decode()


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
    """Parse the `exec` section of a kubeconfig in a directory. Raises InvalidPlugin."""
    try:
        spec = msgspec.convert(content, _ExecSpec)
    except msgspec.ValidationError as error:
        raise InvalidPlugin(f"cannot be read: {error}") from error
    _check_spec(spec)
    command = spec.command
    if os.sep in command:
        # Relative to the kubeconfig; a bare name is searched on the path.
        command = str(folder / command)
    env = tuple((row.get("name", ""), row.get("value", "")) for row in spec.env or ())
    return CredentialPlugin(
        spec.api_version, command, tuple(spec.args or ()), env=env,
        install_hint=spec.install_hint.strip(),
        interactive_mode=spec.interactive_mode or "IfAvailable",
        cluster=cluster if spec.provide_cluster_info else None,
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
    """A CredentialSource that runs an exec plugin."""

    def __init__(self, plugin: CredentialPlugin, trust: ServerTrust | None, clock: Clock) -> None:
        self._plugin, self._trust, self._clock = plugin, trust, clock
        self._running = asyncio.Lock()
        self._credential: Credential | None = None
        self._expires_at = float("inf")
        self._failure: tuple[float, CredentialError] | None = None

    async def get(self) -> Credential:
        """Return the cached credential while it is valid, else run the plugin."""
        async with self._running:
            if self._credential is None or self._clock.now() >= self._expires_at:
                self._credential = await self._fetch()
            return self._credential

    def invalidate(self, rejected: Credential) -> bool:
        """Drop the credential, unless the plugin has run since."""
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
            raise CredentialError(f"the output of {name} cannot be used: {error}") from error
        return Credential(found.token, tls)


async def _run_plugin(plugin: CredentialPlugin) -> bytes:
    """Run the plugin and return its output; it may use the terminal if there is one."""
    interactive = (
        plugin.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
    )
    if plugin.interactive_mode == "Always" and not interactive:
        raise CredentialError(f"{plugin.command} wants to ask the user, but there is no terminal")
    environment = {
        **dict(plugin.env),
        "KUBERNETES_EXEC_INFO": plugin.exec_info(interactive=interactive),
    }
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command, *plugin.args, env={**os.environ, **environment},
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
        credential = msgspec.json.decode(written, type=_ExecCredential)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CredentialError(
            f"{plugin.command} did not print an ExecCredential: {error}"
        ) from error
    status = credential.status or _ExecStatus()
    has_pair = bool(status.client_certificate_data), bool(status.client_key_data)
    problems = (
        (f"printed a {credential.kind or 'nameless object'}, not an ExecCredential",
         credential.kind != "ExecCredential"),
        (f"printed an ExecCredential of version {credential.api_version!r}, not {plugin.version!r}",
         credential.api_version != plugin.version),
        ("printed neither a token nor a client certificate", not (status.token or any(has_pair))),
        ("printed only one of client certificate and key", has_pair[0] != has_pair[1]),
    )  # fmt: skip
    for problem, is_there in problems:
        if is_there:
            raise CredentialError(f"{plugin.command} {problem}")
    return status
