"""HTTPS requests to webhooks, on aiohttp.

A call has one time limit for everything: waiting for a connection, connecting, TLS, the reply.
Redirects are not followed and proxies are not used, so that a request goes where an administrator
has configured it to go. A webhook that hangs takes connections of its own only (`_MAX_CONNECTIONS`
per address), and no more than `_MAX_PENDING_CALLS` requests wait for it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import ssl
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from phalanx.api.kinds import ENDPOINT_SLICE, SERVICE
from phalanx.api.wire import JSON, Object
from phalanx.server.objects import decode_record
from phalanx.store.kv import StoreReader

if TYPE_CHECKING:
    import aiohttp

_MAX_CONNECTIONS, _MAX_PENDING_CALLS = 32, 1_000
#: Bytes of a reply: an object of the largest size, doubled by a patch in base64, and room.
MAX_REPLY_BYTES = 8 * 1024 * 1024
_MAX_EXCERPT = 512
_CERTIFICATE_NAME_ERRORS = (62, 64)  # OpenSSL: hostname mismatch, IP address mismatch
_SERVICE_NAME_LABEL = "kubernetes.io/service-name"


class WebhookCallFailed(Exception):
    """A webhook did not answer, or its answer cannot be used; the failure policy decides."""


class WebhookAddress(NamedTuple):
    """Where a webhook is: the URL as messages show it, the URL to call, and certificate names.

    The certificate must be valid for one of the names; none: for the host of the URL.
    """

    shown: str
    url: str
    names: tuple[str, ...] = ()


class WebhookClient:
    """Calls webhooks by the `clientConfig` of their configuration.

    `urls` maps a Service (`namespace/name`) to the URL of a local process that serves in its place.
    """

    def __init__(self, store: StoreReader, urls: Mapping[str, str]) -> None:
        self._store, self._urls = store, urls
        self._session: aiohttp.ClientSession | None = None
        self._pending: Counter[str] = Counter()

    async def call(self, config: Object, review: Object, seconds: float) -> Object:
        """Send a review and return the decoded answer. Raises WebhookCallFailed."""
        query = f"?timeout={seconds:g}s"
        address = self._resolve(config, query)
        if self._pending[address.url] >= _MAX_PENDING_CALLS:
            raise _failure(address, f"{_MAX_PENDING_CALLS} requests wait for this webhook already")
        self._pending[address.url] += 1
        try:
            async with asyncio.timeout(seconds):
                return await self._post(address, _trusted_roots(config), orjson.dumps(review))
        except TimeoutError:
            raise _failure(address, "context deadline exceeded") from None
        finally:
            self._pending[address.url] -= 1
            if not self._pending[address.url]:
                del self._pending[address.url]

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, address: WebhookAddress, tls: ssl.SSLContext, body: bytes) -> Object:
        session = self._session or await self._open_session()
        names = address.names or (None,)
        for name in names:
            try:
                async with session.post(
                    address.url,
                    data=body,
                    ssl=tls,
                    server_hostname=name,
                    allow_redirects=False,
                    headers={"content-type": JSON, "accept": JSON},
                ) as response:
                    return await _read_answer(address, response)
            except (OSError, ValueError, _import_aiohttp().ClientError) as error:
                if name is not names[-1] and _is_name_error(error):
                    continue
                raise _failure(address, _describe(error)) from error
        raise AssertionError("a webhook has at least one certificate name")

    async def _open_session(self) -> aiohttp.ClientSession:
        # Imported by the first call: a server without webhooks need not load an HTTP client.
        aiohttp = await asyncio.to_thread(_import_aiohttp)
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, limit_per_host=_MAX_CONNECTIONS)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers={"user-agent": "kube-apiserver-admission", "accept-encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    def _resolve(self, config: Object, query: str) -> WebhookAddress:
        if url := config.get("url"):
            return WebhookAddress(f"{url}{query}", f"{url}{query}")
        service = config["service"]
        namespace, name, port = service["namespace"], service["name"], service.get("port", 443)
        path, host = service.get("path") or "/", f"{name}.{namespace}.svc"
        path = path if path.startswith("/") else f"/{path}"
        shown = f"https://{host}:{port}{path}{query}"
        if local := self._urls.get(f"{namespace}/{name}"):
            names = (host, urlsplit(local).hostname or host)
            return WebhookAddress(shown, f"{local.rstrip('/')}{path}{query}", names)
        target = self._find_endpoint(namespace, name, port, shown=shown)
        return WebhookAddress(shown, f"https://{target}{path}{query}", (host,))

    def _find_endpoint(self, namespace: str, name: str, port: int, *, shown: str) -> str:
        """Return the address and port of a ready endpoint of a Service."""
        record = self._store.get(SERVICE.store_key(namespace, name))
        if record is None:
            raise _failure(WebhookAddress(shown, ""), f'service "{name}" not found')
        ports = decode_record(record)["spec"].get("ports") or ()
        port_name = next((one.get("name", "") for one in ports if one.get("port") == port), None)
        if port_name is None:
            detail = f'no service port {port} found for service "{name}"'
            raise _failure(WebhookAddress(shown, ""), detail)
        for one in self._store.range(ENDPOINT_SLICE.store_prefix(namespace)):
            endpoints = decode_record(one)
            if (endpoints["metadata"].get("labels") or {}).get(_SERVICE_NAME_LABEL) != name:
                continue
            numbers = [
                p.get("port")
                for p in endpoints.get("ports") or ()
                if (p.get("name") or "") == port_name
            ]
            for endpoint in endpoints.get("endpoints") or ():
                is_ready = (endpoint.get("conditions") or {}).get("ready", True)
                if is_ready and numbers and endpoint.get("addresses"):
                    host = endpoint["addresses"][0]
                    return f"[{host}]:{numbers[0]}" if ":" in host else f"{host}:{numbers[0]}"
        detail = f'no endpoints available for service "{name}"'
        raise _failure(WebhookAddress(shown, ""), detail)


def _import_aiohttp() -> Any:
    import aiohttp

    return aiohttp


async def _read_answer(address: WebhookAddress, response: aiohttp.ClientResponse) -> Object:
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_REPLY_BYTES:
            response.close()
            raise _failure(address, f"the answer has more than {MAX_REPLY_BYTES} bytes")
    body = b"".join(parts)
    if response.status >= 300:
        excerpt = body[:_MAX_EXCERPT].decode(errors="replace").strip()
        detail = f'the webhook answered {response.status} ("{excerpt}")'
        raise _failure(address, detail)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _failure(address, f"the answer is not JSON: {error}") from error
    if not isinstance(answer, dict):
        raise _failure(address, "the answer is not an object")
    return answer


@lru_cache(maxsize=256)
def _tls_context(bundle: str) -> ssl.SSLContext:
    """Return a context that trusts a `caBundle`, or without one the roots of the system."""
    if not bundle:
        return ssl.create_default_context()
    return ssl.create_default_context(cadata=base64.b64decode(bundle, validate=True).decode())


def _trusted_roots(config: Object) -> ssl.SSLContext:
    try:
        return _tls_context(config.get("caBundle") or "")
    except (ssl.SSLError, ValueError, binascii.Error) as error:
        raise WebhookCallFailed(
            "failed to call webhook: unable to load root certificates: "
            "unable to parse bytes as PEM block"
        ) from error


def _failure(address: WebhookAddress, detail: str) -> WebhookCallFailed:
    return WebhookCallFailed(f'failed to call webhook: Post "{address.shown}": {detail}')


def _is_name_error(error: Exception) -> bool:
    found = getattr(error, "certificate_error", None)
    return getattr(found, "verify_code", 0) in _CERTIFICATE_NAME_ERRORS


def _describe(error: Exception) -> str:
    if found := getattr(error, "certificate_error", None):
        return f"tls: failed to verify certificate: {getattr(found, 'verify_message', found)}"
    if found := getattr(error, "os_error", None):
        return f"connect: {os.strerror(found.errno).lower()}" if found.errno else str(found)
    return str(error) or type(error).__name__
