"""The transport over HTTPS, on aiohttp.

One session of keep-alive connections to one server. Every network error becomes Unreachable; every
reply except a watch is bounded in time and size. It follows no redirect, so that no credential is
sent elsewhere, and never repeats a POST or PATCH after a network error: only the caller knows
whether that is safe.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from phalanx.api.errors import ServerError
from phalanx.api.wire import JSON, Reply, Request, StreamReply
from phalanx.client.credentials import (
    Credential,
    CredentialError,
    CredentialSource,
    StaticCredential,
)
from phalanx.client.protocol import is_watch
from phalanx.client.transports import Unreachable

#: The code of a rejected credential.
_UNAUTHORIZED = 401
_NETWORK_ERRORS = (aiohttp.ClientError, OSError)
#: The server has answered, but not as the one that is meant.
_TLS_ERRORS = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)


@dataclass(frozen=True, slots=True)
class HttpClientLimits:
    """Timeouts for connecting, replies and idle watches; size of a reply; connections.

    Watches have connections of their own: a garbage collector watches every kind, and requests must
    not wait for a watch to end.
    """

    connect_timeout: float = 10.0
    request_timeout: float = 60.0
    # Servers send a bookmark every minute: two in a row may be late.
    watch_idle_timeout: float = 180.0
    max_response_bytes: int = 256 * 1024 * 1024
    max_connections: int = 64
    max_watches: int = 1000


class HttpTransport:
    """A transport to the server at a URL, with a token, a client certificate, both or neither.

    A `CredentialSource` is asked before each request; after a 401 it is asked once more.
    `server_name` is the name in the server's certificate if it differs from the URL.
    """

    def __init__(
        self,
        server: str,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        limits: HttpClientLimits | None = None,
        credentials: CredentialSource | None = None,
        server_name: str = "",
    ) -> None:
        self._server, self._limits, self._server_name = (
            server.rstrip("/"),
            limits or HttpClientLimits(),
            server_name,
        )
        # On a local network compression costs more than it saves.
        self._headers = {"user-agent": "phalanx", "accept-encoding": "identity"}
        self._credentials = credentials or StaticCredential(Credential(token, tls))
        #: For requests (False) and for watches (True).
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def send(self, request: Request) -> Reply | StreamReply:
        """Send a request over a pooled connection; a watch keeps its connection until its end."""
        try:
            response = await self._request(request)
            if is_watch(request) and response.status < 300:
                return StreamReply(response.status, self._chunks(response), JSON)
            async with response:
                return Reply(
                    response.status, await self._read_body(response), response.content_type,
                    tuple((name.lower(), value) for name, value in response.headers.items()),
                )  # fmt: skip
        except CredentialError as error:
            raise Unreachable(self._server, str(error), is_down=False) from error
        except _NETWORK_ERRORS as error:
            is_down = not isinstance(error, _TLS_ERRORS)
            raise Unreachable(self._server, _describe_error(error), is_down=is_down) from error

    async def close(self) -> None:
        """Close all connections."""
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()

    async def _request(self, request: Request) -> aiohttp.ClientResponse:
        credential = await self._credentials.get()
        response = await self._send_once(request, credential)
        if response.status == _UNAUTHORIZED and self._credentials.invalidate(credential):
            # The server rejected the credential before it did anything: any request may be
            # repeated.
            response.release()
            response = await self._send_once(request, await self._credentials.get())
        return response

    async def _send_once(self, request: Request, presented: Credential) -> aiohttp.ClientResponse:
        body, query = request.body, f"?{request.query}" if request.query else ""
        credential = {"authorization": f"Bearer {presented.token}"} if presented.token else {}
        watches = is_watch(request)
        return await self._open_session(watches=watches).request(
            request.method,
            URL(f"{self._server}{quote(request.path)}{query}", encoded=True),
            data=orjson.dumps(body) if isinstance(body, dict) else body or None,
            headers={**request.headers, **credential},
            timeout=self._watch_timeout if watches else self._request_timeout,
            allow_redirects=False,
            ssl=presented.tls or True,
            server_hostname=self._server_name or None,
        )

    def _open_session(self, *, watches: bool) -> aiohttp.ClientSession:
        """Return the session, created on first use because it belongs to the running loop."""
        session = self._sessions.get(watches)
        if session is None:
            limit = self._limits.max_watches if watches else self._limits.max_connections
            session = self._sessions[watches] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=limit),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session

    @property
    def _request_timeout(self) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=self._limits.request_timeout, sock_connect=self._limits.connect_timeout
        )

    @property
    def _watch_timeout(self) -> aiohttp.ClientTimeout:
        limits = self._limits
        # `connect` includes the wait for a free connection: beyond the limit a watch fails.
        return aiohttp.ClientTimeout(
            total=None, connect=limits.connect_timeout, sock_read=limits.watch_idle_timeout
        )

    async def _read_body(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > self._limits.max_response_bytes:
                response.close()
                raise ServerError(
                    f"the server's answer has more than {self._limits.max_response_bytes} bytes"
                )
        return b"".join(parts)

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except _NETWORK_ERRORS as error:
            raise Unreachable(self._server, _describe_error(error)) from error
        finally:
            # Aborted instead of returned to the pool: a watch has no end. Aborting also avoids
            # waiting for a TLS shutdown when the event loop is closed next.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()


def _describe_untrusted(error: aiohttp.ClientConnectorCertificateError) -> str:
    cause = error.certificate_error
    return f"its certificate is not trusted: {getattr(cause, 'verify_message', cause)}"


def _describe_os_error(error: aiohttp.ClientConnectorError) -> str:
    number = error.os_error.errno
    return os.strerror(number) if number and number > 0 else str(error.os_error)


#: The first matching row describes an error.
_ERROR_DESCRIPTIONS: tuple[tuple[type[Exception], Callable[[Any], str]], ...] = (
    (aiohttp.ClientConnectorCertificateError, _describe_untrusted),
    (aiohttp.ClientConnectorSSLError, lambda e: f"TLS failed: {e.os_error.reason}"),
    (aiohttp.ClientConnectorError, _describe_os_error),
    (aiohttp.ServerDisconnectedError, lambda e: "it closed the connection"),
    (TimeoutError, lambda e: "it did not answer in time"),
)


def _describe_error(error: Exception) -> str:
    rows = (describe for kind, describe in _ERROR_DESCRIPTIONS if isinstance(error, kind))
    return next(rows, str)(error) or type(error).__name__
