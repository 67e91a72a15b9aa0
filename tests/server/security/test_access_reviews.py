"""Questions about access are answered as requests are."""

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


async def joes_server() -> Api:
    """Where joe may list pods in one namespace, and his account may too."""
    api = await Api.start()
    await make_role(api, "pods", PODS)
    await grant(api, JOE, "pods", "default")
    return api


async def ask(api: Api, path: str, spec: Object, who: UserInfo = ADMIN) -> ApiResponse:
    return await api.ask("POST", path, {"spec": spec}, user=who)


async def allowed(api: Api, who: UserInfo, **attributes: str) -> bool:
    """What a review of oneself says, which must be what a review by others says."""
    own = await ask(
        api, SELF_SUBJECT_ACCESS_REVIEW.url_path(), {"resourceAttributes": attributes}, who
    )
    spec = {"resourceAttributes": attributes, "user": who.name, "groups": list(who.groups)}
    others = await ask(api, SUBJECT_ACCESS_REVIEW.url_path(), spec)
    assert own.body["status"] == others.body["status"]
    answer: bool = own.body["status"]["allowed"]
    return answer


@in_virtual_time
async def test_a_review_says_what_a_request_would_meet() -> None:
    api = await joes_server()
    assert await allowed(api, JOE, **LIST)
    changes = (
        {"verb": "delete"}, {"namespace": "kube-system"}, {"namespace": ""},
        {"resource": "secrets"}, {"subresource": "status"}, {"group": "apps"},
    )  # fmt: skip
    for change in changes:
        assert not await allowed(api, JOE, **{**LIST, **change}), change
    assert await allowed(api, ADMIN, verb="dance", resource="dragons")


@in_virtual_time
async def test_a_review_knows_groups_accounts_and_nodes() -> None:
    api = await joes_server()
    assert not await allowed(api, service_account_user("default", "robot"), **LIST)
    controller = service_account_user("kube-system", "job-controller")
    assert await allowed(api, controller, verb="create", resource="pods", namespace="x")
    assert await allowed(api, node_user("n1"), verb="get", resource="nodes", name="n1")
    assert not await allowed(api, node_user("n1"), verb="get", resource="nodes", name="n2")


@in_virtual_time
async def test_a_review_of_a_path() -> None:
    api = await joes_server()
    for path, is_allowed in (
        ("/version", True),
        ("/apis/x", True),
        ("/metrics", False),
        ("", False),
    ):
        spec = {"nonResourceAttributes": {"verb": "get", "path": path}}
        answer = await ask(api, SELF_SUBJECT_ACCESS_REVIEW.url_path(), spec, JOE)
        assert answer.body["status"]["allowed"] == is_allowed, path


@in_virtual_time
async def test_a_review_in_a_namespace_is_about_that_namespace() -> None:
    api = await joes_server()
    path = LOCAL_SUBJECT_ACCESS_REVIEW.url_path("default")
    spec = {"user": "joe", "resourceAttributes": LIST}
    assert (await ask(api, path, spec)).body["status"]["allowed"]
    elsewhere = {"user": "joe", "resourceAttributes": {**LIST, "namespace": "other"}}
    assert (await ask(api, path, elsewhere)).code == 422


@in_virtual_time
async def test_a_review_that_asks_nothing_is_refused() -> None:
    api = await joes_server()
    both = {"resourceAttributes": LIST, "nonResourceAttributes": {"verb": "get", "path": "/"}}
    for path, spec in (
        (SELF_SUBJECT_ACCESS_REVIEW.url_path(), {}), (SELF_SUBJECT_ACCESS_REVIEW.url_path(), both),
        (SUBJECT_ACCESS_REVIEW.url_path(), {"resourceAttributes": LIST}),
        (SELF_SUBJECT_RULES_REVIEW.url_path(), {}),
    ):  # fmt: skip
        assert (await ask(api, path, spec)).code == 422, spec
    for kind in (SELF_SUBJECT_ACCESS_REVIEW, SUBJECT_ACCESS_REVIEW, SELF_SUBJECT_RULES_REVIEW):
        assert (await api.ask("POST", kind.url_path(), {})).code == 422


@in_virtual_time
async def test_all_that_somebody_may_in_a_namespace_is_listed() -> None:
    api = await joes_server()
    path = SELF_SUBJECT_RULES_REVIEW.url_path()
    found = (await ask(api, path, {"namespace": "default"}, JOE)).body["status"]
    assert PODS in found["resourceRules"]
    assert any("/version" in rule["nonResourceURLs"] for rule in found["nonResourceRules"])
    elsewhere = (await ask(api, path, {"namespace": "other"}, JOE)).body["status"]
    assert PODS not in elsewhere["resourceRules"]
    master = (await ask(api, path, {"namespace": "default"})).body["status"]
    assert master["resourceRules"] == [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]


# ---- acting as somebody else ---------------------------------------------------------------------


def may_be(resource: str, *names: str, group: str = "") -> Object:
    rule: Object = {"apiGroups": [group], "resources": [resource], "verbs": ["impersonate"]}
    return {**rule, "resourceNames": list(names)} if names else rule


async def whoami(api: Api, who: UserInfo, **headers: str) -> ApiResponse:
    named = {f"impersonate-{key.replace('_', '-')}": value for key, value in headers.items()}
    return await api.ask("POST", SELF_SUBJECT_REVIEW.url_path(), {}, user=who, headers=named)


@in_virtual_time
async def test_whoever_may_act_as_somebody_is_taken_for_them() -> None:
    api = await Api.start()
    tokens = "authentication.k8s.io"
    await make_role(
        api, "be", may_be("users", "ann"), may_be("groups", "team"),
        may_be("uids", "u1", group=tokens), may_be("userextras/scope", "s", group=tokens),
    )  # fmt: skip
    await grant(api, JOE, "be")
    answer = await whoami(api, JOE, user="ann", group="team", uid="u1", extra_scope="s")
    assert answer.body["status"]["userInfo"] == {
        "username": "ann", "groups": ["team", "system:authenticated"], "uid": "u1",
        "extra": {"scope": ["s"]},
    }  # fmt: skip
    for headers in (
        {"user": "bob"}, {"user": "ann", "group": "system:masters"},
        {"user": "ann", "group": "team, other"}, {"user": "ann", "uid": "u2"},
        {"user": "ann", "extra_scope": "t"}, {"user": "ann", "extra_more": "s"},
        {"user": "system:serviceaccount:default:robot"},
    ):  # fmt: skip
        assert (await whoami(api, JOE, **headers)).code == 403, headers


@in_virtual_time
async def test_an_editor_acts_as_accounts_of_the_namespace_alone() -> None:
    api = await Api.start()
    await grant(api, JOE, "edit", "default")
    robot = await whoami(api, JOE, user="system:serviceaccount:default:robot")
    assert robot.body["status"]["userInfo"]["groups"] == [
        "system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated",
    ]  # fmt: skip
    other = await whoami(api, JOE, user="system:serviceaccount:kube-system:robot")
    assert (other.code, other.body["message"]) == (403, (
        'serviceaccounts "robot" is forbidden: User "joe" cannot impersonate resource '
        '"serviceaccounts" in API group "" in the namespace "kube-system"'
    ))  # fmt: skip


@pytest.mark.parametrize("who", [ADMIN, JOE], ids=["a master", "joe"])
@in_virtual_time
async def test_groups_of_nobody_are_refused(who: UserInfo) -> None:
    api = await Api.start()
    assert (await whoami(api, who, group="team")).code == 400
    assert (await whoami(api, who, user="", group="team")).code == 400


@in_virtual_time
async def test_whoever_acts_as_somebody_may_what_they_may_and_no_more() -> None:
    api = await joes_server()
    as_joe = {"impersonate-user": "joe"}
    for path, code in ((POD.url_path("default"), 200), (POD.url_path("kube-system"), 403)):
        assert (await api.ask("GET", path, headers=as_joe)).code == code
    nobody = await whoami(api, ADMIN, user="system:anonymous")
    assert nobody.code == 403
