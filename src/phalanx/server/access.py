"""Who asks, and may they. Tokens become users; users are allowed or refused.

One administrator for now: whoever is in `system:masters` may do everything, whoever is known may
ask what is served and what they may do, anybody may ask for the health and the version, and that is
all.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace

from phalanx.api.errors import BadRequest, Forbidden, Unauthorized
from phalanx.api.kinds import (
    SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
)
from phalanx.api.wire import ANONYMOUS, Request, User
from phalanx.server.call import Call

MASTERS, AUTHENTICATED = "system:masters", "system:authenticated"
ADMIN = User("admin", (MASTERS, AUTHENTICATED))
_IMPERSONATE = "impersonate-"
#: What everybody who is known may ask: about themselves, and what is served.
_ABOUT_ONESELF = (SELF_SUBJECT_REVIEW, SELF_SUBJECT_ACCESS_REVIEW, SELF_SUBJECT_RULES_REVIEW)
_DISCOVERY = ("/api", "/apis", "/openapi")
PUBLIC = frozenset({"/healthz", "/livez", "/readyz", "/version"})


class Tokens:
    """Which token is whose. Only hashes are kept, and compared in constant time."""

    def __init__(self, users: Mapping[str, User]) -> None:
        self._users = [(_digest(token), user) for token, user in users.items()]

    def identify(self, authorization: str) -> User:
        """The user of an Authorization header; a wrong credential is never taken for none."""
        if not authorization:
            return ANONYMOUS
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer":
            digest = _digest(token.strip())
            for known, user in self._users:
                if hmac.compare_digest(known, digest):
                    return user
        raise Unauthorized


def acting(request: Request) -> Request:
    """The request as whoever it wants to be made by; only a master may act as somebody else."""
    headers = {k: v for k, v in request.headers.items() if k.startswith(_IMPERSONATE)}
    if not headers:
        return request
    name, user = headers.get(f"{_IMPERSONATE}user", ""), request.user
    if not name:
        raise BadRequest(f"requested {sorted(headers)} without impersonating a user")
    if MASTERS not in user.groups:
        raise Forbidden(
            f'users "{name}" is forbidden: User "{user.name}" cannot impersonate resource "users" '
            'in API group "" at the cluster scope',
            name=name, kind="users",
        )  # fmt: skip
    group = headers.get(f"{_IMPERSONATE}group", "")
    groups = (*(part.strip() for part in group.split(",") if part.strip()), AUTHENTICATED)
    return replace(request, user=User(name, groups))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def authorise(user: User, verb: str, call: Call) -> None:
    """Refuse a call on objects that the user may not make."""
    is_known = AUTHENTICATED in user.groups
    if MASTERS in user.groups or (is_known and call.kind in _ABOUT_ONESELF):
        return
    kind = call.kind
    what = f"{kind.plural}/{call.subresource}" if call.subresource else kind.plural
    where = f'in the namespace "{call.namespace}"' if call.namespace else "at the cluster scope"
    named = f'{kind.resource} "{call.name}"' if call.name else kind.resource
    raise Forbidden(
        f'{named} is forbidden: User "{user.name}" cannot {verb} resource "{what}" in API group '
        f'"{kind.group}" {where}',
        name=call.name, group=kind.group, kind=kind.plural,
    )  # fmt: skip


def authorise_path(user: User, method: str, path: str) -> None:
    """Refuse a path that is not about objects. Whoever is known may learn what is served."""
    is_known = AUTHENTICATED in user.groups and path.startswith(_DISCOVERY)
    if MASTERS not in user.groups and not is_known and path not in PUBLIC:
        raise Forbidden(f'forbidden: User "{user.name}" cannot {method.lower()} path "{path}"')
