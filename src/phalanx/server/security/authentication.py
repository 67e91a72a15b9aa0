"""Authentication: from a credential to a user.

    Authorization header ─▶ issued tokens ─▶ service account tokens ─▶ user
    client certificate   ─▶ CN and O ─▶ user

A request without a credential is anonymous. A request with an invalid credential is refused,
without the reason; it never counts as anonymous.

`Tokens` holds the tokens that a server is started with. An `IssuedTokenFile` in the data directory
holds those that `phalanx token` issues while a server runs: new tokens are valid at once, revoked
tokens are refused within a second, whatever the clock shows. Only hashes are stored.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from phalanx.api.errors import Unauthorized
from phalanx.api.wire import ANONYMOUS, UserInfo
from phalanx.clock import Clock
from phalanx.server.security.private_files import (
    InsecurePermissionsError,
    check_private,
    write_private,
)
from phalanx.server.security.signing import ISSUER, ServiceAccountTokens, Signer
from phalanx.server.security.users import authenticated_user
from phalanx.store.kv import StoreReader

_log = logging.getLogger("phalanx.server")

TOKEN_FILE_NAME = "tokens.json"
#: The prefix of our tokens, by which leaked ones are recognised.
_TOKEN_PREFIX = "phalanx-"
#: Seconds after which the token file is read again even if its state has not changed.
_REREAD_SECONDS = 1.0


class Tokens:
    """The tokens of the start, the file of issued tokens, the signer of service account tokens."""

    def __init__(
        self,
        users: Mapping[str, UserInfo],
        *,
        file: IssuedTokenFile | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._users = {token_digest(token): user for token, user in users.items()}
        self._file, self.signer = file, signer or Signer.generate()

    def user(self, token: str, now: float) -> UserInfo | None:
        """Return the user of a token of the start or of a valid issued token, else None."""
        found = self._users.get(token_digest(token))
        if found is None and self._file is not None:
            return self._file.user(token, now)
        return found

    def authenticate(self, authorization: str) -> UserInfo:
        """Return the user of an Authorization header, by the tokens of the start alone.

        Anonymous without a header. Raises Unauthorized for an invalid credential.
        """
        if not authorization:
            return ANONYMOUS
        user = self._users.get(token_digest(parse_bearer_token(authorization)))
        if user is None:
            raise Unauthorized
        return user


class IssuedToken(msgspec.Struct, frozen=True):
    """One issued token; `label` describes its purpose."""

    id: str
    user: str
    hash: str
    groups: tuple[str, ...] = ()
    created: float = 0.0
    expires: float | None = None
    label: str = ""


class IssuedTokenFile:
    """The issued tokens, in a private file. `monotonic` is a time that is never set back."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path, self._monotonic = path, monotonic
        #: The state and the content of the file when it was last read, and when that was.
        self._file_state: tuple[int, ...] = ()
        self._content = b""
        self._last_read = float("-inf")
        self._tokens_by_hash: dict[str, tuple[UserInfo, IssuedToken]] = {}

    def user(self, token: str, now: float) -> UserInfo | None:
        """Return the user of a token that has not expired, else None."""
        hashed = token_digest(token).hex()
        self._refresh()
        user, issued = self._tokens_by_hash.get(hashed, (None, None))
        has_expired = issued is not None and issued.expires is not None and issued.expires <= now
        return None if has_expired else user

    def create(
        self, user: UserInfo, now: float, seconds: float | None = None, *, label: str = ""
    ) -> str:
        """Issue a token, which is shown only once; it replaces a token of the same label.

        Raises ValueError for a user or group without a name.
        """
        if not all((user.name, *user.groups)):
            raise ValueError("a user or group of a token must have a name")
        token = _TOKEN_PREFIX + secrets.token_urlsafe(32)
        with self._locked():
            other_tokens = [one for one in self.all() if not label or one.label != label]
            expires = None if seconds is None else now + seconds
            hashed = token_digest(token).hex()
            new = IssuedToken(
                hashed[:8],
                user.name,
                hashed,
                groups=user.groups,
                created=now,
                expires=expires,
                label=label,
            )
            self._write([*other_tokens, new])
        return token

    def revoke(self, token_id: str) -> bool:
        """Revoke a token; return whether it existed."""
        with self._locked():
            tokens = self.all()
            remaining = [one for one in tokens if one.id != token_id]
            self._write(remaining)
        return len(remaining) < len(tokens)

    def all(self) -> list[IssuedToken]:
        """Return all issued tokens. Raises InsecurePermissionsError if the file is not private."""
        if not self.path.exists():
            return []
        check_private(self.path)
        return _decode_tokens(self.path.read_bytes())

    def _write(self, tokens: list[IssuedToken]) -> None:
        write_private(self.path, msgspec.json.format(msgspec.json.encode(tokens), indent=1))
        self._last_read = float("-inf")

    def _refresh(self) -> None:
        """Read the file if it may have changed.

        A changed state shows that at once. The content is compared once per second, because the
        state can stay equal: clocks are set back, inodes are reused, timestamps are coarse.
        """
        now = self._monotonic()
        state: tuple[int, ...] = ()
        try:
            found = os.stat(self.path)
            state = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if state == self._file_state and now - self._last_read < _REREAD_SECONDS:
                return
            check_private(self.path)
            content = self.path.read_bytes()
            if content != self._content:
                tokens = _decode_tokens(content)
                self._tokens_by_hash = {
                    one.hash: (authenticated_user(one.user, one.groups), one)
                    for one in tokens
                    # Version 0.1 issued tokens for users without a name.
                    if one.user
                }
                self._content = content
        except FileNotFoundError:
            self._forget_tokens()
        except (OSError, InsecurePermissionsError, msgspec.MsgspecError) as error:
            _log.error("%s cannot be used: %s", self.path.name, error)
            self._forget_tokens()
        self._file_state, self._last_read = state, now

    def _forget_tokens(self) -> None:
        self._tokens_by_hash, self._content = {}, b""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file against other writers."""
        lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


_decode_tokens = msgspec.json.Decoder(list[IssuedToken]).decode


def token_digest(token: str) -> bytes:
    """Return the stored hash of a token; tokens are long and random and need no salt."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def parse_bearer_token(authorization: str) -> str:
    """Return the token of an Authorization header. Raises Unauthorized."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized
    return token


class RequestAuthenticator(Protocol):
    """Authenticates an Authorization header."""

    def authenticate(self, authorization: str) -> UserInfo:
        """Return the user. Raises Unauthorized."""
        ...


class Authenticator:
    """Authenticates every kind of credential that the server accepts."""

    def __init__(self, store: StoreReader, clock: Clock, tokens: Tokens) -> None:
        self._clock, self._tokens = clock, tokens
        self.service_account_tokens = ServiceAccountTokens(store, tokens.signer)

    def authenticate(self, authorization: str) -> UserInfo:
        """Return the user of an Authorization header; anonymous without one."""
        if not authorization:
            return ANONYMOUS
        user = self.user(parse_bearer_token(authorization))
        if user is None:
            raise Unauthorized
        return user

    def user(self, token: str, audiences: Sequence[str] = (ISSUER,)) -> UserInfo | None:
        """Return the user of a token, else None; issued tokens have this server as audience."""
        now = self._clock.now()
        if ISSUER in audiences:
            found = self._tokens.user(token, now)
            if found is not None:
                return found
        return self.service_account_tokens.user(token, now, audiences)


class ClientCertificate(NamedTuple):
    """The user of a verified client certificate, and when it expires (Unix time)."""

    user: UserInfo
    expires: float


def read_client_certificate(certificate: Mapping[str, Any]) -> ClientCertificate:
    """Read a certificate as `ssl` decodes it: CN is the name of the user, each O a group."""
    rows = [row for part in certificate.get("subject", ()) for row in part]
    names = [value for key, value in rows if key == "commonName"]
    groups = tuple(value for key, value in rows if key == "organizationName")
    if len(names) != 1 or not names[0]:
        raise Unauthorized
    expires = ssl.cert_time_to_seconds(certificate["notAfter"])
    return ClientCertificate(authenticated_user(names[0], groups), expires)
