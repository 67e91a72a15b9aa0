"""What opens a server, and where it comes from: fixed, out of a file, or from a program.

`http.Http` asks a Login before every request and tells it when the server did not accept what it
gave; `kubeconfig` chooses the Login. Programs are run in `plugins`.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

#: Seconds after which a token that is kept in a file is read again: it may have been replaced.
_FRESH = 60.0


@dataclass(frozen=True, slots=True)
class Pass:
    """A token, a client certificate (in `tls`), both or neither."""

    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


class NoCredential(Exception):
    """A credential could not be had: in one sentence."""


class Login(Protocol):
    """Where a Pass comes from."""

    async def enter(self) -> Pass:
        """What to show now. Raises NoCredential."""
        ...

    def refused(self, shown: Pass) -> bool:
        """The server did not accept that; whether there may be something better next time."""
        ...


class Fixed:
    """Always the same."""

    def __init__(self, shown: Pass) -> None:
        self._pass = shown

    async def enter(self) -> Pass:
        """What it always is."""
        return self._pass

    def refused(self, shown: Pass) -> bool:
        """There is nothing else."""
        return False


class TokenFile:
    """The token in a file, read again every so often; the last one stays if that fails."""

    def __init__(self, path: Path, first: Pass) -> None:
        self._path, self._pass, self._read_at = path, first, -_FRESH

    async def enter(self) -> Pass:
        """The token as it stands there, or stood there a while ago."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= _FRESH:
            self._read_at = now
            self._read()
        return self._pass

    def refused(self, shown: Pass) -> bool:
        """Look whether there is another one already."""
        self._read()
        return self._pass.token != shown.token

    def _read(self) -> None:
        with suppress(OSError, UnicodeDecodeError):
            token = self._path.read_text().strip()
            self._pass = Pass(token or self._pass.token, self._pass.tls)


@dataclass(frozen=True, slots=True)
class Trust:
    """By what a server must prove who it is: an authority, or nothing at all if `insecure`."""

    ca: str = field(default="", repr=False)
    insecure: bool = False

    def context(self, certificate: str = "", key: str = "") -> ssl.SSLContext:
        """That for a connection, with a client certificate of ours. Raises ValueError."""
        try:
            return self._made(certificate, key)
        except ssl.SSLError as error:
            raise ValueError(str(error)) from error

    def _made(self, certificate: str, key: str) -> ssl.SSLContext:
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
