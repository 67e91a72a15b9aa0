"""Access reviews answer as the authorizer decides, and impersonation needs permission."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import (
    LOCAL_SUBJECT_ACCESS_REVIEW,
    POD,
    SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
    SUBJECT_ACCESS_REVIEW,
)
from phalanx.api.wire import Object, UserInfo
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.users import node_user, service_account_user
from tests.builders import in_virtual_time
from tests.server.api import Api, ApiResponse
from tests.server.security.rbac_fixtures import JOE, PODS, grant, make_role

LIST = {"verb": "list", "resource": "pods", "namespace": "default"}


async def start_server() -> Api:
    """Start a server on which joe may list pods in one namespace."""
    api = await Api.start()
    await make_role(api, "pods", PODS)
    await grant(api, JOE, "pods", "default")
    return api


async def post_review(api: Api, path: str, spec: Object, user: UserInfo = ADMIN) -> ApiResponse:
    return await api.ask("POST", path, {"spec": spec}, user=user)


async def review_allows(api: Api, user: UserInfo, **attributes: object) -> bool:
    """Return the result of a self review, which must equal the review by an administrator."""
    self_review = await post_review(
        api, SELF_SUBJECT_ACCESS_REVIEW.url_path(), {"resourceAttributes": attributes}, user
    )
    spec = {"resourceAttributes": attributes, "user": user.name, "groups": list(user.groups)}
    admin_review = await post_review(api, SUBJECT_ACCESS_REVIEW.url_path(), spec)
    assert self_review.body["status"] == admin_review.body["status"]
    is_allowed: bool = self_review.body["status"]["allowed"]
    return is_allowed


def _in(*values: str) -> Object:
    return {"key": "spec.nodeName", "operator": "In", "values": list(values)}


@in_virtual_time
async def test_access_review_equals_the_authorization_of_a_request() -> None:
    api = await start_server()
    assert await review_allows(api, JOE, **LIST)
    changes = (
        {"verb": "delete"}, {"namespace": "kube-system"}, {"namespace": ""},
        {"resource": "secrets"}, {"subresource": "status"}, {"group": "apps"},
    )  # fmt: skip
    for change in changes:
        assert not await review_allows(api, JOE, **{**LIST, **change}), change
    assert await review_allows(api, ADMIN, verb="dance", resource="dragons")


@in_virtual_time
async def test_access_review_covers_groups_service_accounts_and_nodes() -> None:
    api = await start_server()
    assert not await review_allows(api, service_account_user("default", "robot"), **LIST)
    controller = service_account_user("kube-system", "job-controller")
    assert await review_allows(api, controller, verb="create", resource="pods", namespace="x")
    assert await review_allows(api, node_user("n1"), verb="get", resource="nodes", name="n1")
    assert not await review_allows(api, node_user("n1"), verb="get", resource="nodes", name="n2")


@in_virtual_time
async def test_access_review_of_a_path() -> None:
    api = await start_server()
    for path, is_allowed in (
        ("/version", True),
        ("/apis/x", True),
        ("/metrics", False),
        ("", False),
    ):
        spec = {"nonResourceAttributes": {"verb": "get", "path": path}}
        response = await post_review(api, SELF_SUBJECT_ACCESS_REVIEW.url_path(), spec, JOE)
        assert response.body["status"]["allowed"] == is_allowed, path


@in_virtual_time
async def test_local_access_review_accepts_its_own_namespace_only() -> None:
    api = await start_server()
    path = LOCAL_SUBJECT_ACCESS_REVIEW.url_path("default")
    spec = {"user": "joe", "resourceAttributes": LIST}
    assert (await post_review(api, path, spec)).body["status"]["allowed"]
    elsewhere = {"user": "joe", "resourceAttributes": {**LIST, "namespace": "other"}}
    assert (await post_review(api, path, elsewhere)).code == 422


@in_virtual_time
async def test_access_review_without_attributes_is_invalid() -> None:
    api = await start_server()
    both = {"resourceAttributes": LIST, "nonResourceAttributes": {"verb": "get", "path": "/"}}
    for path, spec in (
        (SELF_SUBJECT_ACCESS_REVIEW.url_path(), {}), (SELF_SUBJECT_ACCESS_REVIEW.url_path(), both),
        (SUBJECT_ACCESS_REVIEW.url_path(), {"resourceAttributes": LIST}),
    ):  # fmt: skip
        assert (await post_review(api, path, spec)).code == 422, spec
    for kind in (SELF_SUBJECT_ACCESS_REVIEW, SUBJECT_ACCESS_REVIEW):
        assert (await api.ask("POST", kind.url_path(), {})).code == 422
    assert (await api.ask("POST", SELF_SUBJECT_RULES_REVIEW.url_path(), {})).code == 400


@in_virtual_time
async def test_rules_review_lists_the_rules_in_a_namespace() -> None:
    api = await start_server()
    path = SELF_SUBJECT_RULES_REVIEW.url_path()
    found = (await post_review(api, path, {"namespace": "default"}, JOE)).body["status"]
    assert PODS in found["resourceRules"]
    assert any("/version" in rule["nonResourceURLs"] for rule in found["nonResourceRules"])
    elsewhere = (await post_review(api, path, {"namespace": "other"}, JOE)).body["status"]
    assert PODS not in elsewhere["resourceRules"]
    admin_rules = (await post_review(api, path, {"namespace": "default"})).body["status"]
    assert admin_rules["resourceRules"] == [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    ]


# ---- impersonation -------------------------------------------------------------------------------


def impersonation_rule(resource: str, *names: str, group: str = "") -> Object:
    rule: Object = {"apiGroups": [group], "resources": [resource], "verbs": ["impersonate"]}
    return {**rule, "resourceNames": list(names)} if names else rule


async def review_self(api: Api, requester: UserInfo, **headers: str) -> ApiResponse:
    impersonation_headers = {
        f"impersonate-{key.replace('_', '-')}": value for key, value in headers.items()
    }
    return await api.ask(
        "POST", SELF_SUBJECT_REVIEW.url_path(), {}, user=requester, headers=impersonation_headers
    )


@in_virtual_time
async def test_permitted_impersonation_sets_user_groups_uid_and_extra() -> None:
    api = await Api.start()
    tokens = "authentication.k8s.io"
    await make_role(
        api,
        "be",
        impersonation_rule("users", "ann"),
        impersonation_rule("groups", "team"),
        impersonation_rule("uids", "u1", group=tokens),
        impersonation_rule("userextras/scope", "s", group=tokens),
    )
    await grant(api, JOE, "be")
    response = await review_self(api, JOE, user="ann", group="team", uid="u1", extra_scope="s")
    assert response.body["status"]["userInfo"] == {
        "username": "ann", "groups": ["team", "system:authenticated"], "uid": "u1",
        "extra": {"scope": ["s"]},
    }  # fmt: skip
    for headers in (
        {"user": "bob"}, {"user": "ann", "group": "system:masters"},
        {"user": "ann", "group": "team, other"}, {"user": "ann", "uid": "u2"},
        {"user": "ann", "extra_scope": "t"}, {"user": "ann", "extra_more": "s"},
        {"user": "system:serviceaccount:default:robot"},
    ):  # fmt: skip
        assert (await review_self(api, JOE, **headers)).code == 403, headers


@in_virtual_time
async def test_editor_impersonates_service_accounts_of_its_namespace_only() -> None:
    api = await Api.start()
    await grant(api, JOE, "edit", "default")
    service_account = await review_self(api, JOE, user="system:serviceaccount:default:robot")
    assert service_account.body["status"]["userInfo"]["groups"] == [
        "system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated",
    ]  # fmt: skip
    other = await review_self(api, JOE, user="system:serviceaccount:kube-system:robot")
    assert (other.code, other.body["message"]) == (403, (
        'serviceaccounts "robot" is forbidden: User "joe" cannot impersonate resource '
        '"serviceaccounts" in API group "" in the namespace "kube-system"'
    ))  # fmt: skip


@pytest.mark.parametrize("user", [ADMIN, JOE], ids=["admin", "joe"])
@in_virtual_time
async def test_impersonated_groups_without_a_user_are_rejected(user: UserInfo) -> None:
    api = await Api.start()
    assert (await review_self(api, user, group="team")).code == 400
    assert (await review_self(api, user, user="", group="team")).code == 400


@in_virtual_time
async def test_impersonation_has_exactly_the_permissions_of_the_impersonated_user() -> None:
    api = await start_server()
    as_joe = {"impersonate-user": "joe"}
    for path, code in ((POD.url_path("default"), 200), (POD.url_path("kube-system"), 403)):
        assert (await api.ask("GET", path, headers=as_joe)).code == code
    anonymous = await review_self(api, ADMIN, user="system:anonymous")
    assert anonymous.code == 403


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"nonResourceAttributes": {"path": "/x"}}, ["spec.nonResourceAttributes"]),
        (
            {"nonResourceAttributes": {"path": "/x"}, "resourceAttributes": {"verb": "get"}},
            ["spec", "spec.resourceAttributes.namespace", "spec.nonResourceAttributes"],
        ),
    ],
)
@in_virtual_time
async def test_local_review_asks_only_for_its_own_namespace(
    spec: Object, fields: list[str]
) -> None:
    api = await start_server()
    path = LOCAL_SUBJECT_ACCESS_REVIEW.url_path("default")
    answer = await post_review(api, path, {"user": "joe", **spec})
    assert [field for field, _ in answer.cause_reasons] == fields


@in_virtual_time
async def test_access_review_of_a_list_by_name_needs_the_name() -> None:
    api = await Api.start()
    await make_role(api, "one", {**PODS, "resourceNames": ["a"]})
    await grant(api, JOE, "one", "default")
    selector = {"rawSelector": "metadata.name=a"}
    assert await review_allows(api, JOE, **LIST, name="a")
    assert not await review_allows(api, JOE, **LIST, name="b")
    assert not await review_allows(api, JOE, **LIST, fieldSelector=selector)
    assert not await review_allows(api, JOE, **LIST, name="b", fieldSelector=selector)


@pytest.mark.parametrize(
    ("selector", "is_allowed"),
    [
        ({"rawSelector": "spec.nodeName=n1"}, True),
        ({"rawSelector": "spec.nodeName!=n1"}, False),
        ({"rawSelector": "spec.nodeName"}, False),
        ({"requirements": [_in("n1")]}, True),
        ({"requirements": [_in("n2")]}, False),
        ({"requirements": [_in("n1", "n2")]}, False),
        ({"requirements": [_in("x,spec.nodeName=n1")]}, False),
        ({"requirements": [{**_in("n1"), "operator": "NotIn"}]}, False),
        ({"requirements": [{"key": "spec.nodeName", "operator": "Exists"}]}, False),
        ({}, False),
    ],
    ids=str,
)
@in_virtual_time
async def test_access_review_of_a_node_heeds_the_field_selector(
    selector: Object, is_allowed: bool
) -> None:
    api = await Api.start()
    assert await review_allows(api, node_user("n1"), **LIST, fieldSelector=selector) == is_allowed
