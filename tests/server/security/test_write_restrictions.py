"""Nobody grants what they do not hold, holds up what they could not, or is another node."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    POD,
    ROLE,
    ROLE_BINDING,
)
from phalanx.api.wire import Object
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.users import authenticated_user
from tests.builders import in_virtual_time, pod
from tests.server.api import Api
from tests.server.security.rbac_fixtures import JOE, PODS, binding, grant, make_role, role, user

#: All that may be done with roles and bindings, but neither `bind` nor `escalate`.
RBAC_WRITER = {
    "apiGroups": ["rbac.authorization.k8s.io"],
    "resources": ["roles", "rolebindings", "clusterroles", "clusterrolebindings"],
    "verbs": ["create", "update", "patch", "get"],
}


async def a_writer_of_roles(*more: Object) -> Api:
    api = await Api.start()
    await make_role(api, "writer", RBAC_WRITER, *more)
    await grant(api, JOE, "writer")
    return api


@pytest.mark.parametrize(("kind", "namespace"), [(ROLE, "default"), (CLUSTER_ROLE, "")])
@in_virtual_time
async def test_nobody_writes_a_role_that_allows_more_than_they_may(
    kind: object, namespace: str
) -> None:
    api = await a_writer_of_roles()
    path = (ROLE if namespace else CLUSTER_ROLE).url_path(namespace)
    refused = await api.ask("POST", path, role("r", PODS), user=JOE)
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    assert refused.body["message"].endswith(
        'is attempting to grant RBAC permissions not currently held:\n'
        '{APIGroups:[""], Resources:["pods"], Verbs:["get"]}\n'
        '{APIGroups:[""], Resources:["pods"], Verbs:["list"]}'
    )  # fmt: skip
    assert (await api.ask("POST", path, role("r", RBAC_WRITER), user=JOE)).code == 201
    change = await api.ask("PUT", f"{path}/r", role("r", PODS), user=JOE)
    assert change.code == 403
    same = role("r", RBAC_WRITER)
    same["metadata"]["labels"] = {"a": "b"}
    assert (await api.ask("PUT", f"{path}/r", same, user=JOE)).code == 200


@in_virtual_time
async def test_whoever_may_escalate_may_write_any_role() -> None:
    escalate = {**RBAC_WRITER, "verbs": ["escalate"]}
    api = await a_writer_of_roles(escalate)
    answer = await api.ask("POST", CLUSTER_ROLE.url_path(), role("r", PODS), user=JOE)
    assert answer.code == 201


@in_virtual_time
async def test_only_who_may_everything_has_others_decide_what_a_role_holds() -> None:
    api = await a_writer_of_roles()
    taking = {"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}]}
    made = role("r", aggregationRule=taking)
    assert (await api.ask("POST", CLUSTER_ROLE.url_path(), made, user=JOE)).code == 403
    assert (await api.ask("POST", CLUSTER_ROLE.url_path(), made, user=ADMIN)).code == 201


@pytest.mark.parametrize("namespace", ["default", ""])
@in_virtual_time
async def test_nobody_gives_a_role_that_they_do_not_have(namespace: str) -> None:
    api = await a_writer_of_roles()
    await make_role(api, "pods", PODS)
    path = (ROLE_BINDING if namespace else CLUSTER_ROLE_BINDING).url_path(namespace)
    given = binding("b", "pods", user("ann"), namespace=namespace)
    assert (await api.ask("POST", path, given, user=JOE)).code == 403
    own = binding("b", "writer", user("ann"), namespace=namespace)
    assert (await api.ask("POST", path, own, user=JOE)).code == 201
    missing = binding("c", "nothing", user("ann"), namespace=namespace)
    assert (await api.ask("POST", path, missing, user=JOE)).code == 404


@in_virtual_time
async def test_whoever_may_bind_a_role_may_give_it() -> None:
    bind = {**RBAC_WRITER, "verbs": ["bind"], "resourceNames": ["pods"]}
    api = await a_writer_of_roles(bind)
    await make_role(api, "pods", PODS)
    await make_role(api, "more", PODS)
    path = CLUSTER_ROLE_BINDING.url_path()
    codes = [
        (await api.ask("POST", path, binding(name, name, user("ann")), user=JOE)).code
        for name in ("pods", "more")
    ]
    assert codes == [201, 403]


@in_virtual_time
async def test_nobody_holds_up_the_deletion_of_what_they_may_not_hold_up() -> None:
    api = await Api.start()
    (owner,) = await api.create(CONFIG_MAP, {"metadata": {"name": "o", "namespace": "default"}})
    await grant(api, JOE, "edit", "default")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "blockOwnerDeletion": True}
    reference["uid"] = owner["metadata"]["uid"]
    mine = pod("p", meta={"ownerReferences": [reference]})
    refused = await api.ask("POST", POD.url_path("default"), mine, user=JOE)
    assert refused.code == 403
    assert "cannot set blockOwnerDeletion" in refused.body["message"]
    finalizers = {"apiGroups": [""], "resources": ["configmaps/finalizers"], "verbs": ["update"]}
    await make_role(api, "holds", finalizers)
    await grant(api, JOE, "holds", "default")
    assert (await api.ask("POST", POD.url_path("default"), mine, user=JOE)).code == 201
    free = pod("q", meta={"ownerReferences": [{**reference, "blockOwnerDeletion": False}]})
    assert (await api.ask("POST", POD.url_path("default"), free, user=JOE)).code == 201


@in_virtual_time
async def test_an_admin_of_a_namespace_gives_roles_there_and_nowhere_else() -> None:
    api, boss = await Api.start(), authenticated_user("boss")
    await grant(api, boss, "admin", "default")
    for name, code in (("edit", 201), ("view", 201), ("cluster-admin", 403)):
        given = binding(name, name, user("ann"), namespace="default")
        answer = await api.ask("POST", ROLE_BINDING.url_path("default"), given, user=boss)
        assert answer.code == code, name
    given = binding("x", "view", user("ann"))
    assert (await api.ask("POST", CLUSTER_ROLE_BINDING.url_path(), given, user=boss)).code == 403
