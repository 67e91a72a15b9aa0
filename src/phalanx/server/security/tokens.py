"""Bearer tokens that were handed out: which is whose, until when. Only hashes are kept.

`Tokens` are those that a server is given when it is made; a `TokenFile` lies in the data folder,
where `phalanx token` writes it while a server runs: what is added counts at once, what is taken
away within a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from phalanx.api.errors import Unauthorized
from phalanx.api.wire import ANONYMOUS, User
from phalanx.server.security.accounttokens import Signer
from phalanx.server.security.privacy import Exposed, check_private, write_private
from phalanx.server.security.users import known

_log = logging.getLogger("phalanx.server")

FILE = "tokens.json"
#: What tokens begin with, so that whoever finds one knows what it is.
_PREFIX = "phalanx-"
#: Seconds after which it is looked again whether the file has changed.
_FRESH = 1.0


class Tokens:
    """Which token is whose, without end; beside them the `file` of others, and who signs more."""

    def __init__(
        self,
        users: Mapping[str, User],
        *,
        file: TokenFile | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._users = {digest(token): user for token, user in users.items()}
        self._file, self.signer = file, signer or Signer.made()

    def user(self, token: str, now: float) -> User | None:
        """Whose a token is now, if anybody's."""
        found = self._users.get(digest(token))
        if found is None and self._file is not None:
            return self._file.user(token, now)
        return found

    def identify(self, authorization: str) -> User:
        """The user of an Authorization header, by the tokens that have no end.

        A wrong credential is never taken for none.
        """
        if not authorization:
            return ANONYMOUS
        user = self._users.get(digest(bearer(authorization)))
        if user is None:
            raise Unauthorized
        return user


class Handed(msgspec.Struct, frozen=True):
    """One token that was handed out. `label` says what for."""

    id: str
    user: str
    hash: str
    groups: tuple[str, ...] = ()
    created: float = 0.0
    expires: float | None = None
    label: str = ""


class TokenFile:
    """The tokens that were handed out, in a file for its owner alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int] | None = None
        self._looked = float("-inf")
        self._known: dict[str, tuple[User, Handed]] = {}

    def user(self, token: str, now: float) -> User | None:
        """Whose a token is, if anybody's, and if its time is not over."""
        hashed = digest(token).hex()
        if now - self._looked >= _FRESH or hashed not in self._known:
            self._look(now)
        user, handed = self._known.get(hashed, (None, None))
        is_over = handed is not None and handed.expires is not None and handed.expires <= now
        return None if is_over else user

    def create(self, user: User, now: float, seconds: float | None = None, label: str = "") -> str:
        """A new token; nobody can read it anywhere again. It replaces others of its label."""
        token = _PREFIX + secrets.token_urlsafe(32)
        with self._locked():
            kept = [one for one in self.all() if not label or one.label != label]
            expires = None if seconds is None else now + seconds
            hashed = digest(token).hex()
            made = Handed(hashed[:8], user.name, hashed, user.groups, now, expires, label)
            self._write([*kept, made])
        return token

    def revoke(self, wanted: str) -> bool:
        """Take a token back; whether there was one of that id."""
        with self._locked():
            found = self.all()
            kept = [one for one in found if one.id != wanted]
            self._write(kept)
        return len(kept) < len(found)

    def all(self) -> list[Handed]:
        """All that were handed out. Raises Exposed when others may read the file."""
        if not self.path.exists():
            return []
        check_private(self.path)
        return msgspec.json.decode(self.path.read_bytes(), type=list[Handed])

    def _write(self, tokens: list[Handed]) -> None:
        write_private(self.path, msgspec.json.format(msgspec.json.encode(tokens), indent=1))
        self._looked = float("-inf")

    def _look(self, now: float) -> None:
        """Read the file if it is another than last time."""
        self._looked = now
        try:
            state = self.path.stat()
            seen = (state.st_mtime_ns, state.st_ino)
            if seen != self._seen:
                self._known = {one.hash: (known(one.user, one.groups), one) for one in self.all()}
                self._seen = seen
        except FileNotFoundError:
            self._known, self._seen = {}, None
        except (OSError, Exposed, msgspec.MsgspecError) as error:
            _log.error("%s cannot be used: %s", self.path.name, error)
            self._known, self._seen = {}, None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from writing the file at the same time."""
        lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def digest(token: str) -> bytes:
    """What is kept of a token. It is long and random, so that nothing but the hash is needed."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def bearer(authorization: str) -> str:
    """The token in an Authorization header. Raises Unauthorized when there is none."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized
    return token
