"""Sign-in codes: a code is exchanged once, within minutes, for the token of the user that made it.

    phalanx up ─▶ code in the fragment of a URL ─▶ page ─▶ POST /phalanx/v1/sign-in ─▶ token

The browser does not send the fragment of a URL to any server, so that the code is in no log and no
referrer. Only the digest of a code is kept. A server that listens on more than loopback addresses
has no codes. A new code drops older codes of its own user only: no user can end a sign-in of
another.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import NamedTuple

from phalanx.api.errors import TooManyRequests

#: Seconds for which a code is valid.
CODE_TTL = 600.0
#: How many codes of a user may be unused: the oldest are dropped. And of all users: no more then.
MAX_USER_CODES, MAX_CODES = 8, 1024
_CODE_BYTES = 24


class _UnusedCode(NamedTuple):
    user: str
    token: str
    expires: float


class SignInCodes:
    """The unused codes of one server."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        #: By the digest of the code; the oldest first.
        self._codes: dict[bytes, _UnusedCode] = {}

    def issue(self, user: str, token: str) -> str:
        """Return a new code for a token of a user. Raises TooManyRequests."""
        self._drop_expired()
        own = [digest for digest, code in self._codes.items() if code.user == user]
        for digest in own[: max(0, len(own) + 1 - MAX_USER_CODES)]:
            del self._codes[digest]
        if len(self._codes) >= MAX_CODES:
            oldest = next(iter(self._codes.values()))
            raise TooManyRequests(
                f"{MAX_CODES} sign-in codes are unused; sign in with a token, or try again later",
                retry_after=1 + int(oldest.expires - self._now()),
            )
        made = secrets.token_urlsafe(_CODE_BYTES)
        self._codes[_digest(made)] = _UnusedCode(user, token, self._now() + CODE_TTL)
        return made

    def redeem(self, code: str) -> str | None:
        """Return the token of a code, and forget the code; None if it is unknown or expired."""
        self._drop_expired()
        found = self._codes.pop(_digest(code), None)
        return found.token if found else None

    def _drop_expired(self) -> None:
        now = self._now()
        for digest, code in list(self._codes.items()):
            if code.expires <= now:
                del self._codes[digest]


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode(errors="replace")).digest()
