"""Roles and bindings as manifests, and people whom nobody has given anything yet."""

from __future__ import annotations

from phalanx.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC_GROUP, ROLE, ROLE_BINDING
from phalanx.api.wire import Object, UserInfo
from phalanx.server.security.users import authenticated_user
from tests.server.api import Api

JOE, ANN = authenticated_user("joe"), authenticated_user("ann", ("team",))
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}


def role(name: str, *rules: Object, namespace: str = "", **more: object) -> Object:
    meta: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"metadata": meta, "rules": list(rules), **more}


def binding(name: str, role: str, *subjects: Object, namespace: str = "") -> Object:
    """A binding of a cluster role, or of a role of the namespace if it is called `a role`."""
    kind, _, plain = role.rpartition(" ")
    reference = {"apiGroup": RBAC_GROUP, "kind": kind or "ClusterRole", "name": plain}
    meta: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"metadata": meta, "roleRef": reference, "subjects": list(subjects)}


def user(name: str) -> Object:
    return {"kind": "User", "apiGroup": RBAC_GROUP, "name": name}


def group(name: str) -> Object:
    return {"kind": "Group", "apiGroup": RBAC_GROUP, "name": name}


async def grant(api: Api, who: UserInfo, role: str, namespace: str = "") -> None:
    """Give somebody a cluster role, in a namespace or everywhere."""
    kind = ROLE_BINDING if namespace else CLUSTER_ROLE_BINDING
    name = f"{who.name}-{role}".replace(":", "-")
    await api.create(kind, binding(name, role, user(who.name), namespace=namespace))


async def make_role(api: Api, name: str, *rules: Object, namespace: str = "") -> None:
    kind = ROLE if namespace else CLUSTER_ROLE
    await api.create(kind, role(name, *rules, namespace=namespace))


async def is_allowed(api: Api, who: UserInfo, method: str, path: str, body: object = b"") -> bool:
    """Whether somebody is not refused."""
    return (await api.ask(method, path, body, user=who)).code != 403
