"""May they: every request is held against the rules before it is heard, and refused by default.

`app.Server` asks with the user and the call that were made once from the request; the endpoint gets
the same call. The rules are roles and bindings (`security.policy`), for nodes also what is their
own (`security.nodes`); whoever is in `system:masters` may do everything.
"""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.errors import BadRequest, Forbidden
from phalanx.api.kinds import NAMESPACE
from phalanx.api.wire import Request, User
from phalanx.clock import Clock
from phalanx.server.call import Call
from phalanx.server.security.authentication import Authenticator
from phalanx.server.security.nodes import node_allows
from phalanx.server.security.policy import Policy
from phalanx.server.security.rules import Ask
from phalanx.server.security.tokens import Tokens
from phalanx.server.security.users import (
    ADMIN,
    ANONYMOUS_NAME,
    AUTHENTICATED,
    MASTERS,
    NODES,
    UNAUTHENTICATED,
    account_place,
    node_name,
    service_account,
)
from phalanx.store.kv import Store

__all__ = ["ADMIN", "MASTERS", "Access", "Tokens"]

_IMPERSONATE = "impersonate-"
_USER, _GROUP, _UID = f"{_IMPERSONATE}user", f"{_IMPERSONATE}group", f"{_IMPERSONATE}uid"
_EXTRA = f"{_IMPERSONATE}extra-"


class Access:
    """The rules of a store, and who is known to the server."""

    def __init__(self, store: Store, clock: Clock, tokens: Tokens) -> None:
        self._store = store
        self.authenticator = Authenticator(store, clock, tokens)
        self.policy = Policy(store)
        #: By which what a client was handed is known when it comes back.
        self.seal = tokens.signer.seal()

    def allows(self, user: User, ask: Ask) -> bool:
        """Whether somebody may do that."""
        if MASTERS in user.groups:
            return True
        if NODES in user.groups and not ask.path:
            node = node_name(user)
            if node and node_allows(self._store, node, ask):
                return True
        return self.policy.allows(user, ask)

    def authorise(self, user: User, verb: str, call: Call) -> None:
        """Refuse a call on objects that the user may not make."""
        if MASTERS in user.groups:
            return
        kind, part = call.kind, call.subresource
        what = f"{kind.plural}/{part}" if part else kind.plural
        # Whoever has a role in a namespace has it for the namespace itself.
        space = call.name if kind is NAMESPACE else call.namespace
        fields = call.query.get("fieldSelector", "")
        ask = Ask(verb, kind.group, what, space, call.name, fields=fields)
        if not self.allows(user, ask):
            raise _refused(user, ask, kind.resource, kind.plural)

    def authorise_path(self, user: User, method: str, path: str) -> None:
        """Refuse a path that is not about objects."""
        verb = method.lower()
        if not self.allows(user, Ask(verb, path=path)):
            raise Forbidden(f'forbidden: User "{user.name}" cannot {verb} path "{path}"')

    def acting(self, request: Request) -> Request:
        """The request as whoever it wants to be made by, if its user may act as them."""
        if not any(key.startswith(_IMPERSONATE) for key in request.headers):
            return request
        headers = {k: v for k, v in request.headers.items() if k.startswith(_IMPERSONATE)}
        if not headers.get(_USER):
            raise BadRequest(f"requested {sorted(headers)} without impersonating a user")
        wanted = _wanted(headers)
        for ask in _asks(wanted, headers):
            if not self.allows(request.user, ask):
                raise _refused(request.user, ask, ask.resource, ask.resource)
        return replace(request, user=wanted)


def _wanted(headers: dict[str, str]) -> User:
    """The user that a request wants to be made by."""
    name, groups = headers[_USER], _listed(headers.get(_GROUP, ""))
    if not groups and (place := account_place(name)):
        groups = service_account(*place).groups
    everybody = UNAUTHENTICATED if name == ANONYMOUS_NAME else AUTHENTICATED
    extra = tuple(
        (key.removeprefix(_EXTRA), value)
        for key, values in sorted(headers.items())
        if key.startswith(_EXTRA)
        for value in _listed(values)
    )
    return User(name, tuple(dict.fromkeys((*groups, everybody))), headers.get(_UID, ""), extra)


def _asks(wanted: User, headers: dict[str, str]) -> list[Ask]:
    """What somebody must be allowed to act as that user."""
    place = account_place(wanted.name)
    asks = [
        Ask("impersonate", "", "serviceaccounts", *place)
        if place
        else Ask("impersonate", "", "users", name=wanted.name)
    ]
    asks += [
        Ask("impersonate", "", "groups", name=group) for group in _listed(headers.get(_GROUP, ""))
    ]
    tokens = "authentication.k8s.io"
    if wanted.uid:
        asks.append(Ask("impersonate", tokens, "uids", name=wanted.uid))
    return asks + [
        Ask("impersonate", tokens, f"userextras/{key}", name=value) for key, value in wanted.extra
    ]


def _listed(text: str) -> tuple[str, ...]:
    """The values of a header that may have come more than once."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _refused(user: User, ask: Ask, resource: str, plural: str) -> Forbidden:
    where = f'in the namespace "{ask.namespace}"' if ask.namespace else "at the cluster scope"
    named = f'{resource} "{ask.name}"' if ask.name else resource
    return Forbidden(
        f'{named} is forbidden: User "{user.name}" cannot {ask.verb} resource "{ask.resource}" in '
        f'API group "{ask.group}" {where}',
        name=ask.name, group=ask.group, kind=plural,
    )  # fmt: skip
