from __future__ import annotations

import time

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
from phalanx.api.wire import Object, UserInfo
from phalanx.server.security.rbac import AuthorizationAttributes, RbacAuthorizer
from phalanx.server.security.users import service_account_user
from tests.builders import in_virtual_time
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

HERE, THERE = POD.url_path("default"), POD.url_path("kube-system")


@in_virtual_time
async def test_a_role_counts_in_its_namespace_alone() -> None:
    api = await Api.start()
    await make_role(api, "pods", PODS, namespace="default")
    assert not await is_allowed(api, JOE, "GET", HERE)
    await api.create(ROLE_BINDING, binding("b", "Role pods", user("joe"), namespace="default"))
    assert await is_allowed(api, JOE, "GET", HERE)
    for path in (THERE, POD.url_path()):
        assert not await is_allowed(api, JOE, "GET", path)
    assert not await is_allowed(api, JOE, "DELETE", f"{HERE}/a")
    assert not await is_allowed(api, ANN, "GET", HERE)


@in_virtual_time
async def test_a_cluster_role_counts_where_it_is_bound() -> None:
    api = await Api.start()
    await make_role(api, "pods", PODS)
    await grant(api, JOE, "pods", "default")
    await grant(api, ANN, "pods")
    assert [await is_allowed(api, JOE, "GET", path) for path in (HERE, THERE)] == [True, False]
    assert [await is_allowed(api, ANN, "GET", path) for path in (HERE, THERE, POD.url_path())] == [
        True
    ] * 3


@in_virtual_time
async def test_who_has_a_role_in_a_namespace_has_it_for_the_namespace_itself() -> None:
    api = await Api.start()
    await grant(api, JOE, "view", "default")
    spaces = [NAMESPACE.url_path("", name) for name in ("default", "kube-system")]
    assert [await is_allowed(api, JOE, "GET", path) for path in spaces] == [True, False]
    assert not await is_allowed(api, JOE, "GET", NAMESPACE.url_path())
    assert not await is_allowed(api, JOE, "DELETE", spaces[0])


@in_virtual_time
async def test_groups_and_accounts_are_given_roles_too() -> None:
    api = await Api.start()
    await make_role(api, "pods", PODS)
    account = {"kind": "ServiceAccount", "name": "robot"}
    rows = (binding("b", "pods", group("team"), account, namespace="default"),)
    await api.create(ROLE_BINDING, *rows)
    assert await is_allowed(api, ANN, "GET", HERE)
    assert await is_allowed(api, service_account_user("default", "robot"), "GET", HERE)
    assert not await is_allowed(api, service_account_user("other", "robot"), "GET", HERE)
    assert not await is_allowed(api, UserInfo("team"), "GET", HERE)


@in_virtual_time
async def test_what_changes_counts_at_once() -> None:
    api = await Api.start()
    await make_role(api, "pods", PODS)
    await grant(api, JOE, "pods")
    assert await is_allowed(api, JOE, "GET", HERE)
    path = CLUSTER_ROLE.url_path("", "pods")
    await api.ask("PUT", path, role("pods", {**PODS, "verbs": ["delete"]}))
    assert not await is_allowed(api, JOE, "GET", HERE)
    await api.ask("PUT", path, role("pods", PODS))
    assert await is_allowed(api, JOE, "GET", HERE)
    await api.ask("DELETE", CLUSTER_ROLE_BINDING.url_path("", "joe-pods"))
    assert not await is_allowed(api, JOE, "GET", HERE)
    await grant(api, JOE, "pods")
    await api.ask("DELETE", path)
    assert not await is_allowed(api, JOE, "GET", HERE)


@in_virtual_time
async def test_a_name_in_a_rule_narrows_it_down() -> None:
    api = await Api.start()
    await make_role(api, "one", {**PODS, "resourceNames": ["a"]})
    await grant(api, JOE, "one")
    assert [await is_allowed(api, JOE, "GET", f"{HERE}/{name}") for name in "ab"] == [True, False]
    assert not await is_allowed(api, JOE, "GET", HERE)


@in_virtual_time
async def test_parts_and_verbs_are_granted_one_by_one() -> None:
    api = await Api.start()
    await make_role(api, "pods", {**PODS, "verbs": ["get", "list", "create", "delete", "patch"]})
    await grant(api, JOE, "pods")
    for method, path in (
        ("GET", f"{HERE}/a/status"), ("POST", f"{HERE}/a/binding"), ("POST", f"{HERE}/a/eviction"),
        ("DELETE", HERE), ("PUT", f"{HERE}/a"), ("GET", f"{HERE}/a/log"),
    ):  # fmt: skip
        assert not await is_allowed(api, JOE, method, path, {}), (method, path)
    watch = await api.ask("GET", HERE, query={"watch": "1"}, user=JOE)
    assert watch.code == 403


@in_virtual_time
async def test_a_resource_that_is_called_like_a_path_is_no_path() -> None:
    api = await Api.start()
    await make_role(api, "all", {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})
    await grant(api, JOE, "all")
    assert api.server.access.allows(JOE, AuthorizationAttributes("get", "", "/metrics"))
    assert not await is_allowed(api, JOE, "GET", "/metrics")


@in_virtual_time
async def test_an_aggregated_role_has_the_rules_of_what_its_selectors_find_now() -> None:
    api = await Api.start()
    taking = {"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}]}
    await api.create(CLUSTER_ROLE, role("all", aggregationRule=taking))
    await grant(api, JOE, "all")
    assert not await is_allowed(api, JOE, "GET", HERE)
    part = role("part", PODS)
    part["metadata"]["labels"] = {"for": "all"}
    await api.create(CLUSTER_ROLE, part)
    assert await is_allowed(api, JOE, "GET", HERE)
    await api.ask("DELETE", CLUSTER_ROLE.url_path("", "part"))
    assert not await is_allowed(api, JOE, "GET", HERE)


@in_virtual_time
async def test_roles_that_have_each_others_rules_end() -> None:
    api = await Api.start()
    for name, other in (("a", "b"), ("b", "a")):
        made = role(
            name, aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"is": other}}]}
        )
        made["metadata"]["labels"] = {"is": name}
        await api.create(CLUSTER_ROLE, made)
    await grant(api, JOE, "a")
    assert not await is_allowed(api, JOE, "GET", HERE)


@in_virtual_time
async def test_a_server_that_starts_knows_the_roles_that_it_left() -> None:
    from phalanx.server.security.authorization import AccessControl, Tokens

    api = await Api.start()
    await make_role(api, "pods", PODS)
    await grant(api, JOE, "pods")
    again = AccessControl(api.store, api.server.context.clock, Tokens({}))
    assert again.allows(JOE, AuthorizationAttributes("list", "", "pods", "default"))
    assert not again.allows(ANN, AuthorizationAttributes("list", "", "pods", "default"))


@in_virtual_time
async def test_whoever_puts_what_is_not_there_must_be_allowed_to_create_it() -> None:
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
    answer = await api.ask(
        "PATCH", path, applied, user=JOE, headers=apply, query={"fieldManager": "joe"}
    )
    assert answer.code == 403
    await grant(api, JOE, "creates")
    assert (await api.ask("PUT", path, lease, user=JOE)).code == 201


@in_virtual_time
async def test_ten_thousand_bindings_are_answered_within_a_millisecond() -> None:
    api = await Api.start()
    await make_role(api, "pods", PODS)
    for number in range(10_000):
        key = ROLE_BINDING.store_key("default", f"b{number}")
        made = binding(f"b{number}", "pods", user(f"u{number}"), namespace="default")
        api.server.access.rbac._update_grant(key, "default", made)
    users = [UserInfo(f"u{number}", ("system:authenticated",)) for number in range(0, 10_000, 100)]
    ask = AuthorizationAttributes("list", "", "pods", "default")
    begin = time.perf_counter()
    assert all(api.server.access.allows(one, ask) for one in users)
    assert (time.perf_counter() - begin) / len(users) < 0.001


def test_the_kinds_that_the_policy_reads_are_where_it_looks() -> None:
    for kind in (ROLE, CLUSTER_ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING):
        assert kind.store_prefix().startswith("/rbac.authorization.k8s.io/")
    assert not NAMESPACE.store_prefix().startswith("/rbac.authorization.k8s.io/")


# ---- rules that change while they are asked for --------------------------------------------------

ASKED = tuple(
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
#: Where ("" for everywhere), of which name, and what to make of it: rules, subjects, or nothing.
changes = st.lists(
    st.tuples(
        st.sampled_from(("", "default", "kube-system")),
        st.sampled_from("ab"),
        st.sampled_from((None, *RULES)) | st.sampled_from((user("joe"), group("team"))),
    ),
    min_size=1,
    max_size=12,
)


async def change(api: Api, namespace: str, name: str, wanted: Object | None) -> None:
    """A role of that name, its binding, or neither any more; what is there already stays."""
    roles = ROLE if namespace else CLUSTER_ROLE
    grants = ROLE_BINDING if namespace else CLUSTER_ROLE_BINDING
    if wanted is None:
        for kind in (roles, grants):
            await api.ask("DELETE", kind.url_path(namespace, name))
    elif "verbs" in wanted:
        path, new = roles.url_path(namespace), role(name, wanted, namespace=namespace)
        if (await api.ask("POST", path, new)).code == 409:
            await api.ask("PUT", f"{path}/{name}", new)
    else:
        where = "Role " if namespace else ""
        made = binding(name, f"{where}{name}", wanted, namespace=namespace)
        await api.ask("POST", grants.url_path(namespace), made)


@given(changes)
@in_virtual_time
async def test_whatever_changes_the_answers_are_those_of_one_who_reads_everything_anew(
    changes: list[tuple[str, str, Object | None]],
) -> None:
    api = await Api.start()
    policy = api.server.access.rbac
    for one in changes:
        await change(api, *one)
        anew = RbacAuthorizer(api.store)
        for who in (JOE, ANN):
            for ask in ASKED:
                assert policy.allows(who, ask) == anew.allows(who, ask), (one, who, ask)
