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
    POD,
    RBAC_GROUP,
    ROLE,
    ROLE_BINDING,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.server.admission import AdmissionRequest
from phalanx.server.context import ServerContext
from phalanx.server.objects import forbidden_error, not_found_error
from phalanx.server.request_info import RequestInfo
from phalanx.server.security.rbac import ALL, AuthorizationAttributes, PolicyRule, uncovered_rules
from phalanx.server.security.users import MASTERS, node_name

WriteCheck = Callable[[AdmissionRequest], None]

_ALL_RULES = (PolicyRule((ALL,), (ALL,), (ALL,)), PolicyRule((ALL,), paths=(ALL,)))
#: The metadata that garbage collection changes, and managedFields, which records the change.
_GC_FIELDS = frozenset({"ownerReferences", "finalizers", "managedFields"})
#: Labels that a node may never set on itself: they decide which pods run on it. Of the labels of
#: Kubernetes it may set those that describe a machine.
_RESTRICTED_LABEL_DOMAIN = "node-restriction.kubernetes.io"
_KUBERNETES_LABEL_DOMAINS = ("kubernetes.io", "k8s.io")
_KUBELET_LABEL_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")
_KUBELET_LABELS = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    }
)
#: The fields of a pod's status that name ResourceClaims, as messages call them.
_CLAIM_STATUSES = {
    "resourceClaimStatuses": "resource claim statuses",
    "extendedResourceClaimStatus": "extended resource claim status",
}


def check_write_restrictions(request: AdmissionRequest) -> None:
    """Raise Forbidden for an object that the user may not write."""
    request_info = request.request_info
    user = request_info.request.user
    if MASTERS in user.groups:
        return
    if request.old is None and request_info.request.method != "POST":
        # An update of an absent object creates it.
        request.context.access.authorize(user, "create", request_info)
    if "ownerReferences" in request.object["metadata"]:
        _check_owner_references(request)
    for check in _KIND_CHECKS.get(request_info.stored_kind, ()):
        check(request)


# ------------------------------------------------------------------------------------- escalation


def _changes_only_gc_fields(request: AdmissionRequest) -> bool:
    """Whether an update changes only what garbage collection needs: owners and finalizers.

    Only such an update of a role or binding grants nothing. A label does: it decides which
    aggregated roles get the rules of a ClusterRole.
    """
    new, old = request.object, request.old
    if old is None:
        return False
    kept, before = (
        {key: value for key, value in obj["metadata"].items() if key not in _GC_FIELDS}
        for obj in (new, old)
    )
    return {**new, "metadata": kept} == {**old, "metadata": before}


def _check_role_escalation(request: AdmissionRequest) -> None:
    """Require that the user holds all rules of the role, or all rights for an aggregated role."""
    request_info, new = request.request_info, request.object
    user, access = request_info.request.user, request.context.access
    name = new["metadata"]["name"]
    may_escalate = AuthorizationAttributes(
        "escalate",
        RBAC_GROUP,
        request_info.stored_kind.plural,
        namespace=request_info.namespace,
        name=name,
    )
    if _changes_only_gc_fields(request) or access.allows(user, may_escalate):
        return
    _check_rules_are_held(
        request, [PolicyRule.from_object(rule) for rule in new.get("rules") or ()]
    )
    # Without its aggregation rule, a role would keep rules that it only aggregates.
    is_aggregated = any(role.get("aggregationRule") for role in (new, request.old or {}))
    if is_aggregated and uncovered_rules(
        access.rbac.rules(user, request_info.namespace), _ALL_RULES
    ):
        raise forbidden_error(
            request_info.kind, name, "must have cluster-admin privileges to use the aggregationRule"
        )


def _check_binding_escalation(request: AdmissionRequest) -> None:
    """Require that the user holds all rules of the bound role."""
    request_info, access, reference = (
        request.request_info,
        request.context.access,
        request.object["roleRef"],
    )
    kind = ROLE if reference["kind"] == ROLE.name else CLUSTER_ROLE
    role = reference["name"]
    may_bind = AuthorizationAttributes(
        "bind", RBAC_GROUP, kind.plural, namespace=request_info.namespace, name=role
    )
    if _changes_only_gc_fields(request) or access.allows(request_info.request.user, may_bind):
        return
    rules = access.rbac.role_rules(request_info.namespace if kind is ROLE else "", role)
    if rules is None:
        raise not_found_error(kind, role)
    _check_rules_are_held(request, rules)


def _check_rules_are_held(request: AdmissionRequest, rules: Sequence[PolicyRule]) -> None:
    """Raise Forbidden unless the user holds all rules that the object grants."""
    request_info = request.request_info
    user = request_info.request.user
    held = request.context.access.rbac.rules(user, request_info.namespace)
    if missing := uncovered_rules(held, rules):
        rows = "\n".join(map(str, missing))
        groups = " ".join(f'"{group}"' for group in user.groups)
        raise forbidden_error(
            request_info.kind,
            request.object["metadata"]["name"],
            f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions '
            f"not currently held:\n{rows}",
        )


# ------------------------------------------------------------------------------------------ owners


def _check_owner_references(request: AdmissionRequest) -> None:
    """Require the right to set finalizers on owners whose deletion is blocked."""
    context, request_info, new = request.context, request.request_info, request.object
    before = (request.old or {"metadata": {}})["metadata"].get("ownerReferences") or ()
    for owner in new["metadata"]["ownerReferences"]:
        if not owner.get("blockOwnerDeletion") or owner in before:
            continue
        attributes = _finalizer_attributes(context, request_info, owner)
        if attributes is None or not context.access.allows(request_info.request.user, attributes):
            raise forbidden_error(
                request_info.kind, new["metadata"]["name"],
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you "
                f"can't set finalizers on: {owner.get('kind')} {owner.get('name')}",
            )  # fmt: skip


def _finalizer_attributes(
    context: ServerContext, request_info: RequestInfo, owner: Object
) -> AuthorizationAttributes | None:
    """Return the attributes of setting finalizers on an owner; None for an unknown kind."""
    name, version = owner.get("kind"), owner.get("apiVersion")
    for kind in context.registry.kinds:
        if kind.name == name and kind.api_version == version:
            namespace = request_info.namespace if kind.namespaced else ""
            resource = f"{kind.plural}/finalizers"
            return AuthorizationAttributes(
                "update", kind.group, resource, namespace=namespace, name=owner.get("name", "")
            )
    return None


# ------------------------------------------------------------------------------------------- nodes


def _check_node_restriction(request: AdmissionRequest) -> None:
    """Require that a node writes only its own Node, without its taints, owners and some labels.

    With an owner that does not exist, the garbage collector would delete the Node, and the node
    could register again without its taints.
    """
    request_info, new, old = request.request_info, request.object, request.old
    node = node_name(request_info.request.user)
    if not node:
        return
    _check_own_name(request_info, new, node)
    before = old or {"metadata": {}}
    if old is not None and _taints(new) != _taints(old):
        reason = f'node "{node}" is not allowed to modify taints'
        raise forbidden_error(request_info.kind, node, reason)
    if _owners(new) != _owners(before):
        reason = f'node "{node}" is not allowed to modify ownerReferences'
        raise forbidden_error(request_info.kind, node, reason)
    labels, old_labels = (one["metadata"].get("labels") or {} for one in (new, before))
    changed = {key for key in {**labels, **old_labels} if labels.get(key) != old_labels.get(key)}
    if reserved := ", ".join(sorted(filter(_is_reserved_label, changed))):
        raise forbidden_error(
            request_info.kind, node, f"is not allowed to modify labels: {reserved}"
        )


def _check_pod_restriction(request: AdmissionRequest) -> None:
    """Require that a node changes neither the ResourceClaims nor the labels of its pods.

    It may read the claims. By labels it could let a Service send it requests of another workload.
    """
    request_info, new, old = request.request_info, request.object, request.old or {"metadata": {}}
    if not (node := node_name(request_info.request.user)):
        return
    status, before = (obj.get("status") or {} for obj in (new, old))
    changed = [
        title
        for field, title in _CLAIM_STATUSES.items()
        if (status.get(field) or None) != (before.get(field) or None)
    ]
    labels, old_labels = (one["metadata"].get("labels") or {} for one in (new, old))
    if labels != old_labels:
        changed.append("labels through pod status")
    if changed:
        reason = f'node "{node}" cannot update {changed[0]}'
        raise forbidden_error(request_info.kind, new["metadata"]["name"], reason)


def _taints(node: Object) -> Sequence[Object]:
    return (node.get("spec") or {}).get("taints") or ()


def _owners(node: Object) -> Sequence[Object]:
    return node["metadata"].get("ownerReferences") or ()


def _is_reserved_label(key: str) -> bool:
    """Whether a node may not change this label of itself."""
    prefix = f".{key.rpartition('/')[0]}"

    def is_in(*domains: str) -> bool:
        return any(prefix.endswith(f".{domain}") for domain in domains)

    if is_in(_RESTRICTED_LABEL_DOMAIN):
        return True
    is_kubelet_label = key in _KUBELET_LABELS or is_in(*_KUBELET_LABEL_DOMAINS)
    return is_in(*_KUBERNETES_LABEL_DOMAINS) and not is_kubelet_label


def _check_lease_restriction(request: AdmissionRequest) -> None:
    """Require that a node writes only the Lease of its own name."""
    if node := node_name(request.request_info.request.user):
        _check_own_name(request.request_info, request.object, node)


def _check_own_name(request_info: RequestInfo, new: Object, node: str) -> None:
    name = new["metadata"]["name"]
    if name != node:
        raise forbidden_error(
            request_info.kind, name, f'node "{node}" is not allowed to modify node "{name}"'
        )


_KIND_CHECKS: Mapping[Kind, tuple[WriteCheck, ...]] = {
    ROLE: (_check_role_escalation,),
    CLUSTER_ROLE: (_check_role_escalation,),
    ROLE_BINDING: (_check_binding_escalation,),
    CLUSTER_ROLE_BINDING: (_check_binding_escalation,),
    NODE: (_check_node_restriction,),
    POD: (_check_pod_restriction,),
    LEASE: (_check_lease_restriction,),
}
