"""Who may what: the roles and bindings of the store, turned into answers.

    store ─▶ follower ─▶ roles, grants ─▶ allows(user, ask)

A change counts from its commit on, before its writer is told. An aggregated role has the rules of
whatever its selectors find at that moment, whether or not a controller has written them into it.
Answers are remembered until a role or a binding changes: to ask again costs one look-up. Default
is to refuse; nothing here can forbid what another rule allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from phalanx.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC, ROLE, ROLE_BINDING
from phalanx.api.labelselectors import selects
from phalanx.api.wire import Object, User
from phalanx.server.security.rules import Ask, Rule
from phalanx.server.security.users import service_account_name
from phalanx.store.kv import Change, Reader, Record

#: All that concerns us is stored below this.
_PREFIX = f"/{RBAC}/"
#: Answers that are remembered at most; then all are forgotten.
_REMEMBERED = 100_000
#: Who asks, verb, group, resource, namespace and path: all that an answer depends on but the name.
_Question = tuple[User, str, str, str, str, str]


class Role(NamedTuple):
    """The rules of a role, and which others' rules it has too."""

    rules: tuple[Rule, ...]
    labels: dict[str, str]
    selectors: tuple[Object, ...] = ()


class Grant(NamedTuple):
    """A binding: who has which role, in a namespace or ("") everywhere."""

    namespace: str
    #: Where the role is, and its name.
    role: tuple[str, str]
    subjects: tuple[str, ...]


class Policy:
    """The roles and bindings of a store."""

    def __init__(self, store: Reader) -> None:
        self._roles: dict[tuple[str, str], Role] = {}
        self._grants: dict[str, Grant] = {}
        #: Subject -> the keys of its bindings.
        self._held: dict[str, dict[str, None]] = {}
        self._rules: dict[tuple[User, str], tuple[Rule, ...]] = {}
        self._known: dict[_Question, bool | None] = {}
        for record in store.range(_PREFIX):
            self._put(record.key, record)
        store.follow(self._follow)

    # ------------------------------------------------------------------------------- questions

    def allows(self, user: User, ask: Ask) -> bool:
        """Whether somebody may do that."""
        key = (user, ask.verb, ask.group, ask.resource, ask.namespace, ask.path)
        try:
            known = self._known[key]
        except KeyError:
            known = self._remember(key, self._judged(user, ask))
        if known is not None:
            return known
        return any(rule.allows(ask) for rule in self.rules(user, ask.namespace))

    def rules(self, user: User, namespace: str) -> tuple[Rule, ...]:
        """All that somebody is allowed in a namespace, or ("") outside of any."""
        found = self._rules.get((user, namespace))
        if found is None:
            found = self._rules[user, namespace] = self._gathered(user, namespace)
        return found

    def rules_of(self, namespace: str, name: str) -> tuple[Rule, ...] | None:
        """The rules of a role, or ("") of a cluster role, if there is one."""
        if (namespace, name) not in self._roles:
            return None
        return tuple(dict.fromkeys(self._role_rules((namespace, name), set())))

    def _judged(self, user: User, ask: Ask) -> bool | None:
        """Yes, no, or (None) that depends on the name."""
        concerned = [rule for rule in self.rules(user, ask.namespace) if rule.concerns(ask)]
        if any(not rule.names for rule in concerned):
            return True
        return None if concerned else False

    def _remember(self, key: _Question, answer: bool | None) -> bool | None:
        if len(self._known) >= _REMEMBERED:
            self._forget()
        self._known[key] = answer
        return answer

    def _forget(self) -> None:
        self._known.clear()
        self._rules.clear()

    def _gathered(self, user: User, namespace: str) -> tuple[Rule, ...]:
        found: dict[Rule, None] = {}
        for subject in _subjects_of(user):
            for key in self._held.get(subject, ()):
                grant = self._grants[key]
                if grant.namespace in ("", namespace):
                    found |= dict.fromkeys(self._role_rules(grant.role, set()))
        return tuple(found)

    def _role_rules(self, place: tuple[str, str], seen: set[tuple[str, str]]) -> Iterable[Rule]:
        role = self._roles.get(place)
        if role is None or place in seen:
            return
        seen.add(place)
        if not role.selectors:
            yield from role.rules
            return
        for (namespace, name), other in self._roles.items():
            if not namespace and any(selects(one, other.labels) for one in role.selectors):
                yield from self._role_rules(("", name), seen)

    # ------------------------------------------------------------------------------- following

    def _follow(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.key.startswith(_PREFIX):
                self._put(change.key, change.after)

    def _put(self, key: str, record: Record | None) -> None:
        """Take a role or a binding as it is now."""
        self._forget()
        _, _, plural, *place = key.split("/")
        obj = orjson.loads(record.value) if record else None
        if plural in (ROLE.plural, CLUSTER_ROLE.plural):
            self._put_role((place[0] if plural == ROLE.plural else "", place[-1]), obj)
        elif plural in (ROLE_BINDING.plural, CLUSTER_ROLE_BINDING.plural):
            self._put_grant(key, place[0] if plural == ROLE_BINDING.plural else "", obj)

    def _put_role(self, place: tuple[str, str], obj: Object | None) -> None:
        self._roles.pop(place, None)
        if obj is not None:
            rules = tuple(map(Rule.read, obj.get("rules") or ()))
            aggregation = obj.get("aggregationRule") or {}
            selectors = tuple(aggregation.get("clusterRoleSelectors") or ())
            self._roles[place] = Role(rules, obj["metadata"].get("labels") or {}, selectors)

    def _put_grant(self, key: str, namespace: str, obj: Object | None) -> None:
        if old := self._grants.pop(key, None):
            for subject in old.subjects:
                self._held[subject].pop(key, None)
        if obj is not None:
            grant = _grant(namespace, obj)
            self._grants[key] = grant
            for subject in grant.subjects:
                self._held.setdefault(subject, {})[key] = None


def _grant(namespace: str, obj: Object) -> Grant:
    reference = obj["roleRef"]
    where = namespace if reference.get("kind") == ROLE.name else ""
    subjects = (_subject(namespace, one) for one in obj.get("subjects") or ())
    return Grant(namespace, (where, reference["name"]), tuple(dict.fromkeys(subjects)))


def _subject(namespace: str, subject: Object) -> str:
    """How a subject is found: users and accounts by their name, groups by theirs."""
    match subject.get("kind"):
        case "Group":
            return f"group {subject['name']}"
        case "ServiceAccount":
            place = subject.get("namespace") or namespace
            return f"user {service_account_name(place, subject['name'])}"
        case _:
            return f"user {subject['name']}"


def _subjects_of(user: User) -> list[str]:
    return [f"user {user.name}", *(f"group {group}" for group in user.groups)]
