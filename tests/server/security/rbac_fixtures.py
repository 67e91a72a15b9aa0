"""Manifests of roles and bindings, and users without permissions."""

from __future__ import annotations

from phalanx.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC_GROUP, ROLE, ROLE_BINDING
from phalanx.api.wire import Object, UserInfo
from phalanx.server.security.users import authenticated_user
from tests.server.api import Api

JOE, ANN = authenticated_user("joe"), authenticated_user("ann", ("team",))
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}


def role(name: str, *rules: Object, namespace: str = "", **more: object) -> Object:
    metadata: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"metadata": metadata, "rules": list(rules), **more}


def binding(name: str, role: str, *subjects: Object, namespace: str = "") -> Object:
    """Return a binding of a ClusterRole, or of a Role if `role` is "Role <name>"."""
    kind, _, role_name = role.rpartition(" ")
    reference = {"apiGroup": RBAC_GROUP, "kind": kind or "ClusterRole", "name": role_name}
    metadata: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"metadata": metadata, "roleRef": reference, "subjects": list(subjects)}


def user(name: str) -> Object:
    return {"kind": "User", "apiGroup": RBAC_GROUP, "name": name}


def group(name: str) -> Object:
    return {"kind": "Group", "apiGroup": RBAC_GROUP, "name": name}


async def grant(api: Api, user_info: UserInfo, role: str, namespace: str = "") -> None:
    """Bind a ClusterRole to a user, in a namespace or cluster-wide."""
    kind = ROLE_BINDING if namespace else CLUSTER_ROLE_BINDING
    name = f"{user_info.name}-{role}".replace(":", "-")
    await api.create(kind, binding(name, role, user(user_info.name), namespace=namespace))


async def make_role(api: Api, name: str, *rules: Object, namespace: str = "") -> None:
    kind = ROLE if namespace else CLUSTER_ROLE
    await api.create(kind, role(name, *rules, namespace=namespace))


async def is_allowed(
    api: Api, user_info: UserInfo, method: str, path: str, body: object = b""
) -> bool:
    """Whether a request of a user is not answered with 403."""
    return (await api.ask(method, path, body, user=user_info)).code != 403
