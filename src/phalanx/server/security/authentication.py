"""Bearer tokens that were handed out: which is whose, until when. Only hashes are kept.

`Tokens` are those that a server is given when it is made; a `TokenFile` lies in the data folder,
where `phalanx token` writes it while a server runs: what is added counts at once, what is taken
away within a second.

Who asks: a credential becomes a User, or the request is refused.

    Authorization header ─▶ handed-out tokens ─▶ tokens of service accounts ─▶ User
    client certificate   ─▶ CN, O ─▶ User

Who shows nothing is anonymous. Who shows something that does not count is refused, and not told
why: a wrong credential is never taken for none.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

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
#: What tokens begin with, so that whoever finds one knows what it is.
_TOKEN_PREFIX = "phalanx-"
#: Seconds after which it is looked again whether the file has changed.
_RELOAD_SECONDS = 1.0


class Tokens:
    """Which token is whose, without end; beside them the `file` of others, and who signs more."""

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
        """Whose a token is now, if anybody's."""
        found = self._users.get(token_digest(token))
        if found is None and self._file is not None:
            return self._file.user(token, now)
        return found

    def authenticate(self, authorization: str) -> UserInfo:
        """The user of an Authorization header, by the tokens that have no end.

        A wrong credential is never taken for none.
        """
        if not authorization:
            return ANONYMOUS
        user = self._users.get(token_digest(parse_bearer_token(authorization)))
        if user is None:
            raise Unauthorized
        return user


class IssuedToken(msgspec.Struct, frozen=True):
    """One token that was handed out. `label` says what for."""

    id: str
    user: str
    hash: str
    groups: tuple[str, ...] = ()
    created: float = 0.0
    expires: float | None = None
    label: str = ""


class IssuedTokenFile:
    """The tokens that were handed out, in a file for its owner alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_state: tuple[int, int] | None = None
        self._last_check = float("-inf")
        self._tokens_by_hash: dict[str, tuple[UserInfo, IssuedToken]] = {}

    def user(self, token: str, now: float) -> UserInfo | None:
        """Whose a token is, if anybody's, and if its time is not over."""
        hashed = token_digest(token).hex()
        if now - self._last_check >= _RELOAD_SECONDS or hashed not in self._tokens_by_hash:
            self._reload(now)
        user, handed = self._tokens_by_hash.get(hashed, (None, None))
        is_over = handed is not None and handed.expires is not None and handed.expires <= now
        return None if is_over else user

    def create(
        self, user: UserInfo, now: float, seconds: float | None = None, label: str = ""
    ) -> str:
        """A new token; nobody can read it anywhere again. It replaces others of its label."""
        token = _TOKEN_PREFIX + secrets.token_urlsafe(32)
        with self._locked():
            kept = [one for one in self.all() if not label or one.label != label]
            expires = None if seconds is None else now + seconds
            hashed = token_digest(token).hex()
            made = IssuedToken(hashed[:8], user.name, hashed, user.groups, now, expires, label)
            self._write([*kept, made])
        return token

    def revoke(self, token_id: str) -> bool:
        """Take a token back; whether there was one of that id."""
        with self._locked():
            found = self.all()
            kept = [one for one in found if one.id != token_id]
            self._write(kept)
        return len(kept) < len(found)

    def all(self) -> list[IssuedToken]:
        """All that were handed out. Raises Exposed when others may read the file."""
        if not self.path.exists():
            return []
        check_private(self.path)
        return msgspec.json.decode(self.path.read_bytes(), type=list[IssuedToken])

    def _write(self, tokens: list[IssuedToken]) -> None:
        write_private(self.path, msgspec.json.format(msgspec.json.encode(tokens), indent=1))
        self._last_check = float("-inf")

    def _reload(self, now: float) -> None:
        """Read the file if it is another than last time."""
        self._last_check = now
        try:
            state = self.path.stat()
            seen = (state.st_mtime_ns, state.st_ino)
            if seen != self._file_state:
                self._tokens_by_hash = {
                    one.hash: (authenticated_user(one.user, one.groups), one) for one in self.all()
                }
                self._file_state = seen
        except FileNotFoundError:
            self._tokens_by_hash, self._file_state = {}, None
        except (OSError, InsecurePermissionsError, msgspec.MsgspecError) as error:
            _log.error("%s cannot be used: %s", self.path.name, error)
            self._tokens_by_hash, self._file_state = {}, None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from writing the file at the same time."""
        lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def token_digest(token: str) -> bytes:
    """What is kept of a token. It is long and random, so that nothing but the hash is needed."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def parse_bearer_token(authorization: str) -> str:
    """The token in an Authorization header. Raises Unauthorized when there is none."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized
    return token


class RequestAuthenticator(Protocol):
    """Whoever can say whose an Authorization header is."""

    def authenticate(self, authorization: str) -> UserInfo:
        """The user. Raises Unauthorized."""
        ...


class Authenticator:
    """Knows every credential that this server accepts."""

    def __init__(self, store: StoreReader, clock: Clock, tokens: Tokens) -> None:
        self._clock, self._tokens = clock, tokens
        self.service_account_tokens = ServiceAccountTokens(store, tokens.signer)

    def authenticate(self, authorization: str) -> UserInfo:
        """The user of an Authorization header; anonymous where there is none."""
        if not authorization:
            return ANONYMOUS
        user = self.user(parse_bearer_token(authorization))
        if user is None:
            raise Unauthorized
        return user

    def user(self, token: str, audiences: Sequence[str] = (ISSUER,)) -> UserInfo | None:
        """Whose a token is, if anybody's; one that was handed out is for this server alone."""
        now = self._clock.now()
        if ISSUER in audiences:
            found = self._tokens.user(token, now)
            if found is not None:
                return found
        return self.service_account_tokens.user(token, now, audiences)


def certificate_user(certificate: Mapping[str, Any]) -> UserInfo:
    """The user of a client certificate that was verified: CN is the name, each O a group."""
    rows = [row for part in certificate.get("subject", ()) for row in part]
    names = [value for key, value in rows if key == "commonName"]
    groups = tuple(value for key, value in rows if key == "organizationName")
    if len(names) != 1 or not names[0]:
        raise Unauthorized
    return authenticated_user(names[0], groups)
