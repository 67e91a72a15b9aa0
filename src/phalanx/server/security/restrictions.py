"""What may be written depends on who writes it: the checks that need the object itself.

`server.writing` asks once an object is complete, before it is stored. Nobody grants what they do
not hold, unless they may `escalate` or `bind`; nobody holds up the deletion of what they could not
hold up by themselves; a node writes of itself alone. Nothing here changes an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    LEASE,
    NODE,
    RBAC,
    ROLE,
    ROLE_BINDING,
    Kind,
)
from phalanx.api.wire import Object, User
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.objects import forbidden, not_found
from phalanx.server.security.rules import ALL, Ask, Rule, uncovered
from phalanx.server.security.users import MASTERS, node_name

Step = Callable[[Context, Call, Object, Object | None], None]

_EVERYTHING = (Rule((ALL,), (ALL,), (ALL,)), Rule((ALL,), paths=(ALL,)))
#: Labels that nobody may give to their own node: others decide by them what runs there.
_RESERVED = "node-restriction.kubernetes.io/"


def restrict(context: Context, call: Call, new: Object, old: Object | None) -> None:
    """Refuse an object that this user may not write, even if they may write others of its kind."""
    user = call.request.user
    if MASTERS in user.groups:
        return
    if old is None and call.request.method != "POST":
        # Whoever updates what is not there creates it.
        context.access.authorise(user, "create", call)
    if "ownerReferences" in new["metadata"]:
        _check_owners(context, call, new, old)
    for step in _STEPS.get(call.stored, ()):
        step(context, call, new, old)


# ------------------------------------------------------------------------------------------ grants


def _check_rules(context: Context, call: Call, new: Object, old: Object | None) -> None:
    """A role's rules must be held by whoever writes them."""
    parts = ("rules", "aggregationRule")
    if old is not None and all(new.get(part) == old.get(part) for part in parts):
        return
    wanted = [Rule.read(rule) for rule in new.get("rules") or ()]
    if new.get("aggregationRule"):
        wanted = [*wanted, *_EVERYTHING]
    _check_grant(context, call, new, "escalate", call.stored, new["metadata"]["name"], wanted)


def _check_reference(context: Context, call: Call, new: Object, old: Object | None) -> None:
    """The role that a binding gives must be held by whoever gives it."""
    parts = ("roleRef", "subjects")
    if old is not None and all(new.get(part) == old.get(part) for part in parts):
        return
    kind = ROLE if new["roleRef"]["kind"] == ROLE.name else CLUSTER_ROLE
    name = new["roleRef"]["name"]
    rules = context.access.policy.rules_of(call.namespace if kind is ROLE else "", name)
    may_bind = Ask("bind", RBAC, kind.plural, call.namespace, name)
    if rules is None and not context.access.allows(call.request.user, may_bind):
        raise not_found(kind, name)
    _check_grant(context, call, new, "bind", kind, name, rules or ())


def _check_grant(
    context: Context, call: Call, new: Object, verb: str, kind: Kind, name: str,
    wanted: Sequence[Rule],
) -> None:  # fmt: skip
    user, access = call.request.user, context.access
    if access.allows(user, Ask(verb, RBAC, kind.plural, call.namespace, name)):
        return
    lacking = uncovered(access.policy.rules(user, call.namespace), wanted)
    if lacking:
        rows = "\n".join(map(str, lacking))
        raise forbidden(
            call.kind, new["metadata"]["name"],
            f"{_called(user)} is attempting to grant RBAC permissions not currently held:\n{rows}",
        )  # fmt: skip


def _called(user: User) -> str:
    groups = " ".join(f'"{group}"' for group in user.groups)
    return f'user "{user.name}" (groups=[{groups}])'


# ------------------------------------------------------------------------------------------ owners


def _check_owners(context: Context, call: Call, new: Object, old: Object | None) -> None:
    """To hold up an owner's deletion is to set a finalizer on it."""
    before = (old or {"metadata": {}})["metadata"].get("ownerReferences") or ()
    for owner in new["metadata"]["ownerReferences"]:
        if not owner.get("blockOwnerDeletion") or owner in before:
            continue
        ask = _finalizing(context, call, owner)
        if ask is None or not context.access.allows(call.request.user, ask):
            raise forbidden(
                call.kind, new["metadata"]["name"],
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you "
                f"can't set finalizers on: {owner.get('kind')} {owner.get('name')}",
            )  # fmt: skip


def _finalizing(context: Context, call: Call, owner: Object) -> Ask | None:
    """What whoever sets a finalizer on an owner asks for; None if there is no such kind."""
    for kind in context.registry.kinds:
        if kind.name == owner.get("kind") and kind.api_version == owner.get("apiVersion"):
            place = call.namespace if kind.namespaced else ""
            resource = f"{kind.plural}/finalizers"
            return Ask("update", kind.group, resource, place, owner.get("name", ""))
    return None


# ------------------------------------------------------------------------------------------- nodes


def _check_node(context: Context, call: Call, new: Object, old: Object | None) -> None:
    """A node makes and changes itself alone, but neither its taints nor labels that are kept."""
    node = node_name(call.request.user)
    if not node:
        return
    _check_own(call, new, node)
    labels, before = (_labels(one) for one in (new, old))
    changed = [key for key in {**labels, **before} if labels.get(key) != before.get(key)]
    kept = sorted(key for key in changed if _RESERVED in key.partition("/")[0] + "/")
    if kept:
        raise forbidden(call.kind, node, f"is not allowed to modify labels: {', '.join(kept)}")
    if old is not None and new.get("spec", {}).get("taints") != old.get("spec", {}).get("taints"):
        raise forbidden(call.kind, node, f'node "{node}" is not allowed to modify taints')


def _check_lease(context: Context, call: Call, new: Object, old: Object | None) -> None:
    """A node makes a lease of its own name."""
    if node := node_name(call.request.user):
        _check_own(call, new, node)


def _check_own(call: Call, new: Object, node: str) -> None:
    name = new["metadata"]["name"]
    if name != node:
        raise forbidden(call.kind, name, f'node "{node}" is not allowed to modify node "{name}"')


def _labels(obj: Object | None) -> Mapping[str, str]:
    return (obj or {"metadata": {}})["metadata"].get("labels") or {}


_STEPS: Mapping[Kind, tuple[Step, ...]] = {
    ROLE: (_check_rules,),
    CLUSTER_ROLE: (_check_rules,),
    ROLE_BINDING: (_check_reference,),
    CLUSTER_ROLE_BINDING: (_check_reference,),
    NODE: (_check_node,),
    LEASE: (_check_lease,),
}
