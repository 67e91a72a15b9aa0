from __future__ import annotations

import json
import time
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    NAMESPACE,
    POD,
    ROLE,
    ROLE_BINDING,
)
from phalanx.api.wire import Object, Reply, Request, StreamReply, UserInfo
from phalanx.server.security.rbac import AuthorizationAttributes, RbacAuthorizer
from phalanx.server.security.users import service_account_user
from tests.builders import in_virtual_time, pod
from tests.server.api import Api
from tests.server.security.rbac_fixtures import (
    ANN,
    JOE,
    PODS,
    binding,
    grant,
    group,
    is_allowed,
    make_role,
    role,
    user,
)

DEFAULT_PODS, SYSTEM_PODS = POD.url_path("default"), POD.url_path("kube-system")


@in_virtual_time
async def test_role_applies_in_its_namespace_only() -> None:
    api = await Api.start()
    await make_role(api, "pods", PODS, namespace="default")
    assert not await is_allowed(api, JOE, "GET", DEFAULT_PODS)
    await api.create(ROLE_BINDING, binding("b", "Role pods", user("joe"), namespace="default"))
    assert await is_allowed(api, JOE, "GET", DEFAULT_PODS)
    for path in (SYSTEM_PODS, POD.url_path()):
        assert not await is_allowed(api, JOE, "GET", path)
    assert not await is_allowed(api, JOE, "DELETE", f"{DEFAULT_PODS}/a")
    assert not await is_allowed(api, ANN, "GET", DEFAULT_PODS)


@in_virtual_time
async def test_cluster_role_applies_where_it_is_bound() -> None:
    api = await Api.start()
    await make_role(api, "pods", PODS)
    await grant(api, JOE, "pods", "default")
    await grant(api, ANN, "pods")
    assert [await is_allowed(api, JOE, "GET", path) for path in (DEFAULT_PODS, SYSTEM_PODS)] == [
        True,
        False,
    ]
    assert [
        await is_allowed(api, ANN, "GET", path)
        for path in (DEFAULT_PODS, SYSTEM_PODS, POD.url_path())
    ] == [True] * 3


@in_virtual_time
async def test_role_in_a_namespace_applies_to_the_namespace_object() -> None:
    api = await Api.start()
    await grant(api, JOE, "view", "default")
    namespaces = [NAMESPACE.url_path("", name) for name in ("default", "kube-system")]
    assert [await is_allowed(api, JOE, "GET", path) for path in namespaces] == [True, False]
    assert not await is_allowed(api, JOE, "GET", NAMESPACE.url_path())
    assert not await is_allowed(api, JOE, "DELETE", namespaces[0])


@in_virtual_time
async def test_roles_are_bound_to_groups_and_service_accounts() -> None:
    api = await Api.start()
    await make_role(api, "pods", PODS)
    account = {"kind": "ServiceAccount", "name": "robot"}
    rows = (binding("b", "pods", group("team"), account, namespace="default"),)
    await api.create(ROLE_BINDING, *rows)
    assert await is_allowed(api, ANN, "GET", DEFAULT_PODS)
    assert await is_allowed(api, service_account_user("default", "robot"), "GET", DEFAULT_PODS)
    assert not await is_allowed(api, service_account_user("other", "robot"), "GET", DEFAULT_PODS)
    assert not await is_allowed(api, UserInfo("team"), "GET", DEFAULT_PODS)


@in_virtual_time
async def test_changes_of_roles_and_bindings_apply_at_once() -> None:
    api = await Api.start()
    await make_role(api, "pods", PODS)
    await grant(api, JOE, "pods")
    assert await is_allowed(api, JOE, "GET", DEFAULT_PODS)
    path = CLUSTER_ROLE.url_path("", "pods")
    await api.ask("PUT", path, role("pods", {**PODS, "verbs": ["delete"]}))
    assert not await is_allowed(api, JOE, "GET", DEFAULT_PODS)
    await api.ask("PUT", path, role("pods", PODS))
    assert await is_allowed(api, JOE, "GET", DEFAULT_PODS)
    await api.ask("DELETE", CLUSTER_ROLE_BINDING.url_path("", "joe-pods"))
    assert not await is_allowed(api, JOE, "GET", DEFAULT_PODS)
    await grant(api, JOE, "pods")
    await api.ask("DELETE", path)
    assert not await is_allowed(api, JOE, "GET", DEFAULT_PODS)


@in_virtual_time
async def test_resource_names_restrict_a_rule() -> None:
    api = await Api.start()
    await make_role(api, "one", {**PODS, "resourceNames": ["a"]})
    await grant(api, JOE, "one")
    assert [await is_allowed(api, JOE, "GET", f"{DEFAULT_PODS}/{name}") for name in "ab"] == [
        True,
        False,
    ]
    assert not await is_allowed(api, JOE, "GET", DEFAULT_PODS)


ONE_POD = {**PODS, "verbs": ["list", "watch", "deletecollection"], "resourceNames": ["a"]}


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=a", ["a"]),
        ("metadata.name==a", ["a"]),
        ("metadata.name=a,spec.nodeName=none", []),
        ("spec.nodeName=,metadata.name=a", ["a"]),
        ("metadata.name=a,metadata.name=b", []),
        ("metadata.name!=b,metadata.name=a", ["a"]),
        ("metadata.name=b", None),
        ("metadata.name=b,metadata.name=a", None),
        ("metadata.name!=a", None),
        ("metadata.name!=b", None),
        ("metadata.name=", None),
        ("metadata.name", None),
        ("metadata.name in (a)", None),
        ("metadata.name=a\\,b", None),
        ("metadata.name=a=b", None),
        ("metadata.namespace=a", None),
        ("spec.nodeName=a", None),
        ("spec.nodeName=metadata.name\\=a", None),
        ("", None),
    ],
    ids=str,
)
@in_virtual_time
async def test_resource_names_allow_lists_and_watches_that_require_the_name(
    selector: str, names: list[str] | None
) -> None:
    api = await Api.start()
    await make_role(api, "one", ONE_POD)
    await grant(api, JOE, "one", "default")
    await api.create(POD, pod("a"), pod("b"))
    query = {"fieldSelector": selector, "timeoutSeconds": "1"}
    listed = await api.ask("GET", DEFAULT_PODS, user=JOE, query=query)
    watched = await api.server.handle(
        Request("GET", DEFAULT_PODS, urlencode({**query, "watch": "1"}), user=JOE)
    )
    if names is None:
        assert (listed.code, watched.code) == (403, 403)
        return
    assert [one["metadata"]["name"] for one in listed.body["items"]] == names
    assert isinstance(watched, StreamReply)
    events = [json.loads(chunk) async for chunk in watched.chunks]
    assert [one["object"]["metadata"]["name"] for one in events] == names


@in_virtual_time
async def test_resource_names_do_not_allow_more_than_lists_and_watches_by_name() -> None:
    api = await Api.start()
    await make_role(api, "one", ONE_POD)
    await grant(api, JOE, "one", "default")
    await api.create(POD, pod("a"), pod("b"))
    query = {"fieldSelector": "metadata.name=a"}
    for method, path in (
        ("DELETE", DEFAULT_PODS),
        ("GET", SYSTEM_PODS),
        ("GET", POD.url_path()),
        ("GET", f"{DEFAULT_PODS}/b"),
        ("GET", f"{DEFAULT_PODS}/a"),
        ("GET", DEFAULT_PODS.replace("/v1/", "/v1/watch/")),
        ("GET", DEFAULT_PODS.replace("/v1/", "/v1/watch/") + "/b"),
        ("POST", DEFAULT_PODS),
    ):
        reply = await api.ask(method, path, pod("a"), user=JOE, query=query)
        assert reply.code == 403, (method, path)
    labels = {**query, "labelSelector": "app=none"}
    assert (await api.ask("GET", DEFAULT_PODS, user=JOE, query=labels)).body["items"] == []
    twice = "fieldSelector=metadata.name%3Da&fieldSelector=metadata.name%3Db"
    answer = await api.server.handle(Request("GET", DEFAULT_PODS, twice, user=JOE))
    assert isinstance(answer, Reply)
    assert [one["metadata"]["name"] for one in json.loads(answer.body)["items"]] == ["a"]
    refused = await api.ask(
        "GET", DEFAULT_PODS, user=JOE, query={"fieldSelector": "metadata.name=b"}
    )
    assert refused.body["message"].startswith('pods "b" is forbidden: User "joe" cannot list')
    assert refused.body["details"]["name"] == "b"


@in_virtual_time
async def test_name_in_a_selector_of_namespaces_is_not_their_namespace() -> None:
    api = await Api.start()
    await grant(api, JOE, "view", "default")
    query = {"fieldSelector": "metadata.name=default"}
    assert (await api.ask("GET", NAMESPACE.url_path(), user=JOE, query=query)).code == 403


@in_virtual_time
async def test_subresources_and_verbs_are_granted_separately() -> None:
    api = await Api.start()
    await make_role(api, "pods", {**PODS, "verbs": ["get", "list", "create", "delete", "patch"]})
    await grant(api, JOE, "pods")
    for method, path in (
        ("GET", f"{DEFAULT_PODS}/a/status"),
        ("POST", f"{DEFAULT_PODS}/a/binding"),
        ("POST", f"{DEFAULT_PODS}/a/eviction"),
        ("DELETE", DEFAULT_PODS),
        ("PUT", f"{DEFAULT_PODS}/a"),
        ("GET", f"{DEFAULT_PODS}/a/log"),
    ):
        assert not await is_allowed(api, JOE, method, path, {}), (method, path)
    watch = await api.ask("GET", DEFAULT_PODS, query={"watch": "1"}, user=JOE)
    assert watch.code == 403


@in_virtual_time
async def test_rule_for_resources_does_not_allow_paths() -> None:
    api = await Api.start()
    await make_role(api, "all", {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})
    await grant(api, JOE, "all")
    assert api.server.access.allows(JOE, AuthorizationAttributes("get", "", "/metrics"))
    assert not await is_allowed(api, JOE, "GET", "/metrics")


@in_virtual_time
async def test_rule_for_a_path_does_not_cover_the_path_with_a_slash() -> None:
    api = await Api.start()
    await make_role(api, "paths", {"nonResourceURLs": ["/metrics"], "verbs": ["get"]})
    await grant(api, JOE, "paths")
    rows = {"/metrics": True, "/metrics/": False, "/healthz": True, "/healthz/": False}
    assert {path: await is_allowed(api, JOE, "GET", path) for path in rows} == rows


@in_virtual_time
async def test_aggregated_role_follows_its_selected_roles() -> None:
    api = await Api.start()
    aggregation_rule = {"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}]}
    await api.create(CLUSTER_ROLE, role("all", aggregationRule=aggregation_rule))
    await grant(api, JOE, "all")
    assert not await is_allowed(api, JOE, "GET", DEFAULT_PODS)
    part = role("part", PODS)
    part["metadata"]["labels"] = {"for": "all"}
    await api.create(CLUSTER_ROLE, part)
    assert await is_allowed(api, JOE, "GET", DEFAULT_PODS)
    await api.ask("DELETE", CLUSTER_ROLE.url_path("", "part"))
    assert not await is_allowed(api, JOE, "GET", DEFAULT_PODS)


@in_virtual_time
async def test_cyclic_aggregation_terminates() -> None:
    api = await Api.start()
    for name, other in (("a", "b"), ("b", "a")):
        manifest = role(
            name, aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"is": other}}]}
        )
        manifest["metadata"]["labels"] = {"is": name}
        await api.create(CLUSTER_ROLE, manifest)
    await grant(api, JOE, "a")
    assert not await is_allowed(api, JOE, "GET", DEFAULT_PODS)


@in_virtual_time
async def test_authorizer_loads_roles_from_the_store() -> None:
    from phalanx.server.security.authorization import AccessControl, Tokens

    api = await Api.start()
    await make_role(api, "pods", PODS)
    await grant(api, JOE, "pods")
    restarted = AccessControl(api.store, api.server.context.clock, Tokens({}))
    assert restarted.allows(JOE, AuthorizationAttributes("list", "", "pods", "default"))
    assert not restarted.allows(ANN, AuthorizationAttributes("list", "", "pods", "default"))


@in_virtual_time
async def test_put_or_apply_of_a_missing_object_needs_the_create_verb() -> None:
    api = await Api.start()
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    await make_role(api, "updates", {**rule, "verbs": ["update", "patch"]})
    await make_role(api, "creates", {**rule, "verbs": ["create"]})
    await grant(api, JOE, "updates")
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/a"
    lease = {"metadata": {"name": "a"}, "spec": {}}
    assert not await is_allowed(api, JOE, "PUT", path, lease)
    applied = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease}
    apply = {"content-type": "application/apply-patch+yaml"}
    response = await api.ask(
        "PATCH", path, applied, user=JOE, headers=apply, query={"fieldManager": "joe"}
    )
    assert response.code == 403
    await grant(api, JOE, "creates")
    assert (await api.ask("PUT", path, lease, user=JOE)).code == 201


@in_virtual_time
async def test_authorization_takes_under_a_millisecond_with_ten_thousand_bindings() -> None:
    api = await Api.start()
    await make_role(api, "pods", PODS)
    for number in range(10_000):
        key = ROLE_BINDING.store_key("default", f"b{number}")
        manifest = binding(f"b{number}", "pods", user(f"u{number}"), namespace="default")
        api.server.access.rbac._update_grant(key, "default", manifest)
    users = [UserInfo(f"u{number}", ("system:authenticated",)) for number in range(0, 10_000, 100)]
    attributes = AuthorizationAttributes("list", "", "pods", "default")
    begin = time.thread_time()
    assert all(api.server.access.allows(one, attributes) for one in users)
    assert (time.thread_time() - begin) / len(users) < 0.001


def test_rbac_kinds_have_the_store_prefix_that_the_authorizer_watches() -> None:
    for kind in (ROLE, CLUSTER_ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING):
        assert kind.store_prefix().startswith("/rbac.authorization.k8s.io/")
    assert not NAMESPACE.store_prefix().startswith("/rbac.authorization.k8s.io/")


# ---- changes of roles and bindings ---------------------------------------------------------------

REQUESTS = tuple(
    AuthorizationAttributes(verb, "", "pods", namespace, name)
    for verb in ("get", "list")
    for namespace in ("", "default", "kube-system")
    for name in ("", "a")
)
RULES = (
    PODS,
    {**PODS, "resourceNames": ["a"]},
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]},
)
#: Namespace ("" for cluster-wide), name, and content: rules, a subject, or None to delete.
changes = st.lists(
    st.tuples(
        st.sampled_from(("", "default", "kube-system")),
        st.sampled_from("ab"),
        st.sampled_from((None, *RULES)) | st.sampled_from((user("joe"), group("team"))),
    ),
    min_size=1,
    max_size=12,
)


async def apply_change(api: Api, namespace: str, name: str, content: Object | None) -> None:
    """Write the role or create the binding of a name, or delete both."""
    roles = ROLE if namespace else CLUSTER_ROLE
    bindings = ROLE_BINDING if namespace else CLUSTER_ROLE_BINDING
    if content is None:
        for kind in (roles, bindings):
            await api.ask("DELETE", kind.url_path(namespace, name))
    elif "verbs" in content:
        path, new = roles.url_path(namespace), role(name, content, namespace=namespace)
        if (await api.ask("POST", path, new)).code == 409:
            await api.ask("PUT", f"{path}/{name}", new)
    else:
        role_kind = "Role " if namespace else ""
        manifest = binding(name, f"{role_kind}{name}", content, namespace=namespace)
        await api.ask("POST", bindings.url_path(namespace), manifest)


@given(changes)
@in_virtual_time
async def test_incremental_updates_equal_an_authorizer_built_from_the_store(
    changes: list[tuple[str, str, Object | None]],
) -> None:
    api = await Api.start()
    rbac = api.server.access.rbac
    for changed in changes:
        await apply_change(api, *changed)
        rebuilt = RbacAuthorizer(api.store)
        for user_info in (JOE, ANN):
            for attributes in REQUESTS:
                assert rbac.allows(user_info, attributes) == rebuilt.allows(
                    user_info, attributes
                ), (changed, user_info, attributes)
