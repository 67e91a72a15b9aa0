"""Who asks: a credential becomes a User, or the request is refused.

    Authorization header ─▶ handed-out tokens ─▶ tokens of service accounts ─▶ User
    client certificate   ─▶ CN, O ─▶ User

Who shows nothing is anonymous. Who shows something that does not count is refused, and not told
why: a wrong credential is never taken for none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from phalanx.api.errors import Unauthorized
from phalanx.api.wire import ANONYMOUS, User
from phalanx.clock import Clock
from phalanx.server.security.accounttokens import ISSUER, AccountTokens
from phalanx.server.security.tokens import Tokens, bearer
from phalanx.server.security.users import known
from phalanx.store.kv import Reader


class Identifier(Protocol):
    """Whoever can say whose an Authorization header is."""

    def identify(self, authorization: str) -> User:
        """The user. Raises Unauthorized."""
        ...


class Authenticator:
    """Knows every credential that this server accepts."""

    def __init__(self, store: Reader, clock: Clock, tokens: Tokens) -> None:
        self._clock, self._tokens = clock, tokens
        self.accounts = AccountTokens(store, tokens.signer)

    def identify(self, authorization: str) -> User:
        """The user of an Authorization header; anonymous where there is none."""
        if not authorization:
            return ANONYMOUS
        user = self.user(bearer(authorization))
        if user is None:
            raise Unauthorized
        return user

    def user(self, token: str, audiences: Sequence[str] = (ISSUER,)) -> User | None:
        """Whose a token is, if anybody's; one that was handed out is for this server alone."""
        now = self._clock.now()
        if ISSUER in audiences:
            found = self._tokens.user(token, now)
            if found is not None:
                return found
        return self.accounts.user(token, now, audiences)


def certificate_user(certificate: Mapping[str, Any]) -> User:
    """The user of a client certificate that was verified: CN is the name, each O a group."""
    rows = [row for part in certificate.get("subject", ()) for row in part]
    names = [value for key, value in rows if key == "commonName"]
    groups = tuple(value for key, value in rows if key == "organizationName")
    if len(names) != 1 or not names[0]:
        raise Unauthorized
    return known(names[0], groups)
