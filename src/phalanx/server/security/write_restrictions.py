"""Authorization checks that need the object: privilege escalation, owners, node restriction.

`write_handlers` calls them when an object is complete, before it is stored. A user may grant only
rights that the user holds, unless allowed to `escalate` or `bind`; may block an owner's deletion
only with the right to set finalizers on it; a node may write only its own objects. Nothing here
changes an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    LEASE,
    NODE,
    RBAC_GROUP,
    ROLE,
    ROLE_BINDING,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import forbidden_error, not_found_error
from phalanx.server.request_info import RequestInfo
from phalanx.server.security.rbac import ALL, AuthorizationAttributes, PolicyRule, uncovered_rules
from phalanx.server.security.users import MASTERS, node_name

WriteCheck = Callable[[ServerContext, RequestInfo, Object, Object | None], None]

_ALL_RULES = (PolicyRule((ALL,), (ALL,), (ALL,)), PolicyRule((ALL,), paths=(ALL,)))
#: Labels that a node may not set on itself: they decide which pods run on it.
_RESERVED_LABEL_PREFIX = "node-restriction.kubernetes.io/"


def check_write_restrictions(
    context: ServerContext, call: RequestInfo, new: Object, old: Object | None
) -> None:
    """Raise Forbidden for an object that the user may not write."""
    user = call.request.user
    if MASTERS in user.groups:
        return
    if old is None and call.request.method != "POST":
        # An update of an absent object creates it.
        context.access.authorize(user, "create", call)
    if "ownerReferences" in new["metadata"]:
        _check_owner_references(context, call, new, old)
    for step in _KIND_CHECKS.get(call.stored_kind, ()):
        step(context, call, new, old)


# ------------------------------------------------------------------------------------- escalation


def _check_role_escalation(
    context: ServerContext, call: RequestInfo, new: Object, old: Object | None
) -> None:
    """Require that the user holds all rules of the role."""
    parts = ("rules", "aggregationRule")
    if old is not None and all(new.get(part) == old.get(part) for part in parts):
        return
    rules = [PolicyRule.from_object(rule) for rule in new.get("rules") or ()]
    if new.get("aggregationRule"):
        rules = [*rules, *_ALL_RULES]
    _check_escalation(
        context,
        call,
        new,
        verb="escalate",
        kind=call.stored_kind,
        name=new["metadata"]["name"],
        rules=rules,
    )


def _check_binding_escalation(
    context: ServerContext, call: RequestInfo, new: Object, old: Object | None
) -> None:
    """Require that the user holds all rules of the bound role."""
    parts = ("roleRef", "subjects")
    if old is not None and all(new.get(part) == old.get(part) for part in parts):
        return
    kind = ROLE if new["roleRef"]["kind"] == ROLE.name else CLUSTER_ROLE
    name = new["roleRef"]["name"]
    rules = context.access.rbac.role_rules(call.namespace if kind is ROLE else "", name)
    may_bind = AuthorizationAttributes(
        "bind", RBAC_GROUP, kind.plural, namespace=call.namespace, name=name
    )
    if rules is None and not context.access.allows(call.request.user, may_bind):
        raise not_found_error(kind, name)
    _check_escalation(context, call, new, verb="bind", kind=kind, name=name, rules=rules or ())


def _check_escalation(
    context: ServerContext,
    call: RequestInfo,
    new: Object,
    *,
    verb: str,
    kind: Kind,
    name: str,
    rules: Sequence[PolicyRule],
) -> None:
    """Raise Forbidden unless the user may `verb` the role or holds all of its rules."""
    user, access = call.request.user, context.access
    attributes = AuthorizationAttributes(
        verb, RBAC_GROUP, kind.plural, namespace=call.namespace, name=name
    )
    if access.allows(user, attributes):
        return
    missing = uncovered_rules(access.rbac.rules(user, call.namespace), rules)
    if missing:
        rows = "\n".join(map(str, missing))
        groups = " ".join(f'"{group}"' for group in user.groups)
        raise forbidden_error(
            call.kind,
            new["metadata"]["name"],
            f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions '
            f"not currently held:\n{rows}",
        )


# ------------------------------------------------------------------------------------------ owners


def _check_owner_references(
    context: ServerContext, call: RequestInfo, new: Object, old: Object | None
) -> None:
    """Require the right to set finalizers on owners whose deletion is blocked."""
    before = (old or {"metadata": {}})["metadata"].get("ownerReferences") or ()
    for owner in new["metadata"]["ownerReferences"]:
        if not owner.get("blockOwnerDeletion") or owner in before:
            continue
        attributes = _finalizer_attributes(context, call, owner)
        if attributes is None or not context.access.allows(call.request.user, attributes):
            raise forbidden_error(
                call.kind, new["metadata"]["name"],
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you "
                f"can't set finalizers on: {owner.get('kind')} {owner.get('name')}",
            )  # fmt: skip


def _finalizer_attributes(
    context: ServerContext, call: RequestInfo, owner: Object
) -> AuthorizationAttributes | None:
    """Return the attributes of setting finalizers on an owner; None for an unknown kind."""
    for kind in context.registry.kinds:
        if kind.name == owner.get("kind") and kind.api_version == owner.get("apiVersion"):
            namespace = call.namespace if kind.namespaced else ""
            resource = f"{kind.plural}/finalizers"
            return AuthorizationAttributes(
                "update", kind.group, resource, namespace=namespace, name=owner.get("name", "")
            )
    return None


# ------------------------------------------------------------------------------------------- nodes


def _check_node_restriction(
    context: ServerContext, call: RequestInfo, new: Object, old: Object | None
) -> None:
    """Require that a node writes only its own Node, and no taints or reserved labels of it."""
    node = node_name(call.request.user)
    if not node:
        return
    _check_own_name(call, new, node)
    labels, before = (_labels(one) for one in (new, old))
    changed = [key for key in {**labels, **before} if labels.get(key) != before.get(key)]
    forbidden_labels = sorted(
        key for key in changed if _RESERVED_LABEL_PREFIX in key.partition("/")[0] + "/"
    )
    if forbidden_labels:
        raise forbidden_error(
            call.kind, node, f"is not allowed to modify labels: {', '.join(forbidden_labels)}"
        )
    if old is not None and new.get("spec", {}).get("taints") != old.get("spec", {}).get("taints"):
        raise forbidden_error(call.kind, node, f'node "{node}" is not allowed to modify taints')


def _check_lease_restriction(
    context: ServerContext, call: RequestInfo, new: Object, old: Object | None
) -> None:
    """Require that a node writes only the Lease of its own name."""
    if node := node_name(call.request.user):
        _check_own_name(call, new, node)


def _check_own_name(call: RequestInfo, new: Object, node: str) -> None:
    name = new["metadata"]["name"]
    if name != node:
        raise forbidden_error(
            call.kind, name, f'node "{node}" is not allowed to modify node "{name}"'
        )


def _labels(obj: Object | None) -> Mapping[str, str]:
    return (obj or {"metadata": {}})["metadata"].get("labels") or {}


_KIND_CHECKS: Mapping[Kind, tuple[WriteCheck, ...]] = {
    ROLE: (_check_role_escalation,),
    CLUSTER_ROLE: (_check_role_escalation,),
    ROLE_BINDING: (_check_binding_escalation,),
    CLUSTER_ROLE_BINDING: (_check_binding_escalation,),
    NODE: (_check_node_restriction,),
    LEASE: (_check_lease_restriction,),
}
