"""Role-based access control: rules as values, and the authorizer over the roles of a store.

    store ─▶ subscription ─▶ roles, grants ─▶ allows(user, attributes)

A change of a role or binding applies from its commit on. An aggregated role has the rules of all
roles that its selectors match at that moment, whether or not a controller has written them into it.
Decisions are cached until a role or binding changes. Everything is refused unless a rule allows it;
rules never deny.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import orjson

from phalanx.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC_GROUP, ROLE, ROLE_BINDING
from phalanx.api.selectors import selector_matches
from phalanx.api.wire import Object, UserInfo
from phalanx.server.security.users import service_account_name
from phalanx.store.kv import KeyValue, StoreChange, StoreReader

ALL = "*"


class AuthorizationAttributes(NamedTuple):
    """A request to authorize: a verb on a resource (`pods`, `pods/status`) or on a path."""

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    #: The field selector of a list or watch, as it was sent.
    fields: str = ""


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """A rule: verbs on resources, optionally of some names, or on non-resource paths."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    @classmethod
    def from_object(cls, rule: Object) -> PolicyRule:
        """Return the rule of its JSON form."""
        fields = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
        return cls(*(tuple(rule.get(field) or ()) for field in fields))

    def to_object(self) -> Object:
        """Return the JSON form of the rule."""
        fields = {
            "verbs": self.verbs, "apiGroups": self.groups, "resources": self.resources,
            "resourceNames": self.names, "nonResourceURLs": self.paths,
        }  # fmt: skip
        return {field: list(values) for field, values in fields.items() if values}

    def __str__(self) -> str:
        rows = (
            ("APIGroups", self.groups), ("Resources", self.resources),
            ("ResourceNames", self.names), ("NonResourceURLs", self.paths), ("Verbs", self.verbs),
        )  # fmt: skip
        parts = (f"{name}:[{', '.join(map(_quote, v))}]" for name, v in rows if v)
        return "{" + ", ".join(parts) + "}"

    def allows(self, attributes: AuthorizationAttributes) -> bool:
        """Whether the rule allows a request, including the object's name."""
        return self.matches_ignoring_name(attributes) and (
            not self.names or attributes.name in self.names
        )

    def matches_ignoring_name(self, attributes: AuthorizationAttributes) -> bool:
        """Whether the rule allows a request, apart from the object's name."""
        if attributes.verb not in self.verbs and ALL not in self.verbs:
            return False
        if attributes.path:
            return any(_path_matches(path, attributes.path) for path in self.paths)
        is_group = attributes.group in self.groups or ALL in self.groups
        return is_group and _resource_matches(self.resources, attributes.resource)

    def split(self) -> Iterator[PolicyRule]:
        """Yield equivalent rules: of one verb and path, or one verb, group, resource and name."""
        for verb, path in product(self.verbs, self.paths):
            yield PolicyRule((verb,), paths=(path,))
        names: Sequence[tuple[str, ...]] = [(name,) for name in self.names] or [()]
        for row in product(self.verbs, self.groups, self.resources, names):
            verb, group, resource, name = row
            yield PolicyRule((verb,), (group,), (resource,), name)


def uncovered_rules(
    granted: Sequence[PolicyRule], required: Iterable[PolicyRule]
) -> list[PolicyRule]:
    """Return the parts of rules that other rules do not allow."""
    parts = (part for rule in required for part in rule.split())
    return [part for part in parts if not any(_rule_covers(rule, part) for rule in granted)]


def _rule_covers(rule: PolicyRule, part: PolicyRule) -> bool:
    """Whether a rule covers a part that names one verb, resource and name."""
    if part.verbs[0] not in rule.verbs and ALL not in rule.verbs:
        return False
    if part.paths:
        return any(_path_matches(path, part.paths[0]) for path in rule.paths)
    is_group = part.groups[0] in rule.groups or ALL in rule.groups
    is_name = not rule.names or (bool(part.names) and part.names[0] in rule.names)
    return is_group and is_name and _resource_matches(rule.resources, part.resources[0])


def _resource_matches(known: Sequence[str], resource: str) -> bool:
    """Match a resource; `*` matches all, `*/status` this subresource of all."""
    if resource in known or ALL in known:
        return True
    _, slash, part = resource.partition("/")
    return bool(slash) and f"*/{part}" in known


def _path_matches(pattern: str, path: str) -> bool:
    """Match a path; a trailing `*` matches any suffix."""
    return pattern == path or (pattern.endswith(ALL) and path.startswith(pattern[:-1]))


def _quote(text: str) -> str:
    return f'"{text}"'


#: The prefix of RBAC objects in the store.
_RBAC_PREFIX = f"/{RBAC_GROUP}/"
#: Size of the decision cache; a full cache is cleared.
_MAX_CACHED_DECISIONS = 100_000
#: User, verb, group, resource, namespace, path: all that a decision depends on but the name.
_DecisionKey = tuple[UserInfo, str, str, str, str, str]


class RoleRules(NamedTuple):
    """The rules of a role, its labels, and its aggregation selectors."""

    rules: tuple[PolicyRule, ...]
    labels: dict[str, str]
    selectors: tuple[Object, ...] = ()


class RoleGrant(NamedTuple):
    """A binding: its subjects and its role, in a namespace or ("") cluster-wide."""

    namespace: str
    #: Namespace and name of the role.
    role: tuple[str, str]
    subjects: tuple[str, ...]


class RbacAuthorizer:
    """Authorizes by the roles and bindings of a store."""

    def __init__(self, store: StoreReader) -> None:
        self._roles: dict[tuple[str, str], RoleRules] = {}
        self._grants: dict[str, RoleGrant] = {}
        #: Subject -> the keys of its bindings.
        self._grants_by_subject: dict[str, dict[str, None]] = {}
        self._rules_cache: dict[tuple[UserInfo, str], tuple[PolicyRule, ...]] = {}
        self._decisions: dict[_DecisionKey, bool | None] = {}
        #: Called after roles or bindings have changed.
        self.on_change: Callable[[], None] | None = None
        for record in store.range(_RBAC_PREFIX):
            self._update(record.key, record)
        store.subscribe(self._on_commit)

    # --------------------------------------------------------------------------------- queries

    def allows(self, user: UserInfo, attributes: AuthorizationAttributes) -> bool:
        """Whether a user may make a request."""
        key = (
            user,
            attributes.verb,
            attributes.group,
            attributes.resource,
            attributes.namespace,
            attributes.path,
        )
        try:
            known = self._decisions[key]
        except KeyError:
            known = self._cache_decision(key, self._decide(user, attributes))
        if known is not None:
            return known
        return any(rule.allows(attributes) for rule in self.rules(user, attributes.namespace))

    def rules(self, user: UserInfo, namespace: str) -> tuple[PolicyRule, ...]:
        """Return all rules of a user in a namespace, or ("") cluster-wide."""
        found = self._rules_cache.get((user, namespace))
        if found is None:
            # A rules review may name any namespace, and adds no decision.
            if len(self._rules_cache) >= _MAX_CACHED_DECISIONS:
                self._clear_cache()
            found = self._rules_cache[user, namespace] = self._collect_rules(user, namespace)
        return found

    def role_rules(self, namespace: str, name: str) -> tuple[PolicyRule, ...] | None:
        """Return the rules of a role, or with namespace "" of a cluster role, if it exists."""
        if (namespace, name) not in self._roles:
            return None
        return tuple(dict.fromkeys(self._resolve_role_rules((namespace, name), set())))

    def _decide(self, user: UserInfo, attributes: AuthorizationAttributes) -> bool | None:
        """Return True, False, or None if the decision depends on the object's name."""
        concerned = [
            rule
            for rule in self.rules(user, attributes.namespace)
            if rule.matches_ignoring_name(attributes)
        ]
        if any(not rule.names for rule in concerned):
            return True
        return None if concerned else False

    def _cache_decision(self, key: _DecisionKey, decision: bool | None) -> bool | None:
        if len(self._decisions) >= _MAX_CACHED_DECISIONS:
            self._clear_cache()
        self._decisions[key] = decision
        return decision

    def _clear_cache(self) -> None:
        self._decisions.clear()
        self._rules_cache.clear()

    def _collect_rules(self, user: UserInfo, namespace: str) -> tuple[PolicyRule, ...]:
        found: dict[PolicyRule, None] = {}
        for subject in (f"user {user.name}", *(f"group {group}" for group in user.groups)):
            for key in self._grants_by_subject.get(subject, ()):
                grant = self._grants[key]
                if grant.namespace in ("", namespace):
                    found |= dict.fromkeys(self._resolve_role_rules(grant.role, set()))
        return tuple(found)

    def _resolve_role_rules(
        self, role_key: tuple[str, str], seen: set[tuple[str, str]]
    ) -> Iterable[PolicyRule]:
        role = self._roles.get(role_key)
        if role is None or role_key in seen:
            return
        seen.add(role_key)
        if not role.selectors:
            yield from role.rules
            return
        for (namespace, name), other in self._roles.items():
            if not namespace and any(selector_matches(one, other.labels) for one in role.selectors):
                yield from self._resolve_role_rules(("", name), seen)

    # --------------------------------------------------------------------------------- updates

    def _on_commit(self, changes: Sequence[StoreChange]) -> None:
        relevant = [change for change in changes if change.key.startswith(_RBAC_PREFIX)]
        for change in relevant:
            self._update(change.key, change.after)
        if relevant and self.on_change is not None:
            self.on_change()

    def _update(self, key: str, record: KeyValue | None) -> None:
        """Apply a change of a role or binding."""
        self._clear_cache()
        _, _, plural, *place = key.split("/")
        obj = orjson.loads(record.value) if record else None
        if plural in (ROLE.plural, CLUSTER_ROLE.plural):
            self._update_role((place[0] if plural == ROLE.plural else "", place[-1]), obj)
        elif plural in (ROLE_BINDING.plural, CLUSTER_ROLE_BINDING.plural):
            self._update_grant(key, place[0] if plural == ROLE_BINDING.plural else "", obj)

    def _update_role(self, role_key: tuple[str, str], obj: Object | None) -> None:
        self._roles.pop(role_key, None)
        if obj is not None:
            rules = tuple(map(PolicyRule.from_object, obj.get("rules") or ()))
            aggregation = obj.get("aggregationRule") or {}
            selectors = tuple(aggregation.get("clusterRoleSelectors") or ())
            self._roles[role_key] = RoleRules(rules, obj["metadata"].get("labels") or {}, selectors)

    def _update_grant(self, key: str, namespace: str, obj: Object | None) -> None:
        if old := self._grants.pop(key, None):
            for subject in old.subjects:
                del self._grants_by_subject[subject][key]
                if not self._grants_by_subject[subject]:
                    del self._grants_by_subject[subject]
        if obj is not None:
            grant = _parse_binding(namespace, obj)
            self._grants[key] = grant
            for subject in grant.subjects:
                self._grants_by_subject.setdefault(subject, {})[key] = None


def _parse_binding(namespace: str, obj: Object) -> RoleGrant:
    reference = obj["roleRef"]
    where = namespace if reference.get("kind") == ROLE.name else ""
    subjects = (_subject_key(namespace, one) for one in obj.get("subjects") or ())
    return RoleGrant(namespace, (where, reference["name"]), tuple(dict.fromkeys(subjects)))


def _subject_key(namespace: str, subject: Object) -> str:
    """Return the index key of a subject."""
    match subject.get("kind"):
        case "Group":
            return f"group {subject['name']}"
        case "ServiceAccount":
            account_namespace = subject.get("namespace") or namespace
            return f"user {service_account_name(account_namespace, subject['name'])}"
        case _:
            return f"user {subject['name']}"
