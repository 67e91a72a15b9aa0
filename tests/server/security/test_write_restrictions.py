"""Writes that would escalate permissions are rejected: roles, bindings, blockOwnerDeletion."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    Kind,
)
from phalanx.api.wire import MERGE_PATCH, Object
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.users import authenticated_user
from tests.builders import in_virtual_time, pod
from tests.server.api import Api
from tests.server.security.rbac_fixtures import (
    JOE,
    PODS,
    binding,
    grant,
    is_allowed,
    make_role,
    role,
    user,
)

MERGE = {"content-type": MERGE_PATCH}

#: Every write of roles and bindings, but neither `bind` nor `escalate`.
RBAC_WRITER = {
    "apiGroups": ["rbac.authorization.k8s.io"],
    "resources": ["roles", "rolebindings", "clusterroles", "clusterrolebindings"],
    "verbs": ["create", "update", "patch", "get"],
}


async def start_with_role_writer(*more: Object) -> Api:
    api = await Api.start()
    await make_role(api, "writer", RBAC_WRITER, *more)
    await grant(api, JOE, "writer")
    return api


@pytest.mark.parametrize(("kind", "namespace"), [(ROLE, "default"), (CLUSTER_ROLE, "")])
@in_virtual_time
async def test_role_with_permissions_that_its_author_lacks_is_forbidden(
    kind: object, namespace: str
) -> None:
    api = await start_with_role_writer()
    path = (ROLE if namespace else CLUSTER_ROLE).url_path(namespace)
    rejected = await api.ask("POST", path, role("r", PODS), user=JOE)
    assert (rejected.code, rejected.body["reason"]) == (403, "Forbidden")
    assert rejected.body["message"].endswith(
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
async def test_escalate_verb_allows_writing_any_role() -> None:
    escalate = {**RBAC_WRITER, "verbs": ["escalate"]}
    api = await start_with_role_writer(escalate)
    response = await api.ask("POST", CLUSTER_ROLE.url_path(), role("r", PODS), user=JOE)
    assert response.code == 201


@in_virtual_time
async def test_aggregation_rule_needs_all_permissions() -> None:
    api = await start_with_role_writer()
    aggregation_rule = {"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}]}
    manifest = role("r", aggregationRule=aggregation_rule)
    assert (await api.ask("POST", CLUSTER_ROLE.url_path(), manifest, user=JOE)).code == 403
    assert (await api.ask("POST", CLUSTER_ROLE.url_path(), manifest, user=ADMIN)).code == 201


async def patch_metadata(api: Api, kind: Kind, name: str, metadata: Object) -> int:
    """Return the code of a patch of metadata by Joe."""
    path = kind.url_path("default" if kind.namespaced else "", name)
    change = {"metadata": metadata}
    return (await api.ask("PATCH", path, change, user=JOE, headers=MERGE)).code


@in_virtual_time
async def test_label_that_aggregates_a_role_needs_the_permissions_of_the_role() -> None:
    api, viewer = await start_with_role_writer(), authenticated_user("viewer")
    await grant(api, viewer, "view", "default")
    secrets = f"{SECRET.url_path('default')}/s"
    to_view = {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}
    assert await patch_metadata(api, CLUSTER_ROLE, "cluster-admin", to_view) == 403
    assert not await is_allowed(api, viewer, "DELETE", secrets)
    assert await patch_metadata(api, CLUSTER_ROLE, "writer", to_view) == 200


@pytest.mark.parametrize(
    "kind", [ROLE, CLUSTER_ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING], ids=lambda kind: kind.name
)
@in_virtual_time
async def test_update_without_the_granted_permissions_may_change_garbage_collection_fields_only(
    kind: Kind,
) -> None:
    api = await start_with_role_writer()
    namespace = "default" if kind.namespaced else ""
    await make_role(api, "pods", PODS)
    if kind in (ROLE_BINDING, CLUSTER_ROLE_BINDING):
        await api.create(kind, binding("x", "pods", user("ann"), namespace=namespace))
    else:
        await api.create(kind, role("x", PODS, namespace=namespace))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "1"}
    for change, code in (
        ({"finalizers": ["example.com/hold"]}, 200),
        ({"ownerReferences": [owner]}, 200),
        ({"finalizers": None, "ownerReferences": None}, 200),
        ({"labels": {"a": "b"}}, 403),
        ({"annotations": {"a": "b"}}, 403),
        ({"finalizers": ["example.com/hold"], "labels": {"a": "b"}}, 403),
    ):
        assert await patch_metadata(api, kind, "x", change) == code, change


@in_virtual_time
async def test_change_or_removal_of_an_aggregation_rule_needs_all_permissions() -> None:
    api = await start_with_role_writer(PODS)
    aggregation_rule = {"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}]}
    await api.create(CLUSTER_ROLE, role("all", PODS, aggregationRule=aggregation_rule))
    path = CLUSTER_ROLE.url_path("", "all")
    for change in (
        {"aggregationRule": None},
        {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"for": "some"}}]}},
        {"metadata": {"labels": {"for": "all"}}},
    ):
        rejected = await api.ask("PATCH", path, change, user=JOE, headers=MERGE)
        assert rejected.code == 403, change
        assert rejected.body["message"].endswith(
            '"all" is forbidden: must have cluster-admin privileges to use the aggregationRule'
        )


@pytest.mark.parametrize("namespace", ["default", ""])
@in_virtual_time
async def test_binding_a_role_that_its_author_lacks_is_forbidden(namespace: str) -> None:
    api = await start_with_role_writer()
    await make_role(api, "pods", PODS)
    path = (ROLE_BINDING if namespace else CLUSTER_ROLE_BINDING).url_path(namespace)
    granted = binding("b", "pods", user("ann"), namespace=namespace)
    assert (await api.ask("POST", path, granted, user=JOE)).code == 403
    held = binding("b", "writer", user("ann"), namespace=namespace)
    assert (await api.ask("POST", path, held, user=JOE)).code == 201
    missing = binding("c", "nothing", user("ann"), namespace=namespace)
    assert (await api.ask("POST", path, missing, user=JOE)).code == 404


@in_virtual_time
async def test_bind_verb_allows_binding_a_role() -> None:
    bind = {**RBAC_WRITER, "verbs": ["bind"], "resourceNames": ["pods"]}
    api = await start_with_role_writer(bind)
    await make_role(api, "pods", PODS)
    await make_role(api, "more", PODS)
    path = CLUSTER_ROLE_BINDING.url_path()
    codes = [
        (await api.ask("POST", path, binding(name, name, user("ann")), user=JOE)).code
        for name in ("pods", "more")
    ]
    assert codes == [201, 403]


@in_virtual_time
async def test_block_owner_deletion_needs_the_finalizers_permission() -> None:
    api = await Api.start()
    (owner,) = await api.create(CONFIG_MAP, {"metadata": {"name": "o", "namespace": "default"}})
    await grant(api, JOE, "edit", "default")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "blockOwnerDeletion": True}
    reference["uid"] = owner["metadata"]["uid"]
    dependent = pod("p", meta={"ownerReferences": [reference]})
    rejected = await api.ask("POST", POD.url_path("default"), dependent, user=JOE)
    assert rejected.code == 403
    assert "cannot set blockOwnerDeletion" in rejected.body["message"]
    finalizers = {"apiGroups": [""], "resources": ["configmaps/finalizers"], "verbs": ["update"]}
    await make_role(api, "holds", finalizers)
    await grant(api, JOE, "holds", "default")
    assert (await api.ask("POST", POD.url_path("default"), dependent, user=JOE)).code == 201
    not_blocking = pod("q", meta={"ownerReferences": [{**reference, "blockOwnerDeletion": False}]})
    assert (await api.ask("POST", POD.url_path("default"), not_blocking, user=JOE)).code == 201


@in_virtual_time
async def test_namespace_admin_binds_roles_in_its_namespace_only() -> None:
    api, namespace_admin = await Api.start(), authenticated_user("boss")
    await grant(api, namespace_admin, "admin", "default")
    for name, code in (("edit", 201), ("view", 201), ("cluster-admin", 403)):
        granted = binding(name, name, user("ann"), namespace="default")
        response = await api.ask(
            "POST", ROLE_BINDING.url_path("default"), granted, user=namespace_admin
        )
        assert response.code == code, name
    granted = binding("x", "view", user("ann"))
    assert (
        await api.ask("POST", CLUSTER_ROLE_BINDING.url_path(), granted, user=namespace_admin)
    ).code == 403
