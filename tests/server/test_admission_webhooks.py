"""Admission webhooks over TLS: which requests they see, and what their answers do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from phalanx.api.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    GROUP_EVICTION,
    LEASE,
    LEASE_RENEWAL,
    NAMESPACE,
    NODE,
    POD,
    POD_GROUP,
    VALIDATING_WEBHOOK_CONFIGURATION,
)
from phalanx.api.patch import merge_patch
from phalanx.api.wire import Object
from phalanx.clock import WallClock
from phalanx.server.objects import encoder
from phalanx.server.security.audit import AuditLog
from phalanx.server.security.authorization import ADMIN
from phalanx.store.kv import StoreWrite
from tests.builders import node, pod
from tests.server.api import Api
from tests.server.webhook_server import (
    WebhookServer,
    add,
    allow,
    condition,
    config_map,
    configure,
    deny,
    patch,
    post,
    rule,
    webhook,
    with_hooks,
)

# ---- what a review contains, and refusals --------------------------------------------------------


@with_hooks
async def test_webhook_refuses_a_create_with_its_status(api: Api, hooks: WebhookServer) -> None:
    config = hooks.on("/deny", deny("not today", code=403, reason="Forbidden"))
    await configure(api, webhook(config, rule("configmaps")))
    answer = await post(api, config_map())
    assert answer.code == 403
    assert answer.body["message"] == (
        'admission webhook "check.example.com" denied the request: not today'
    )
    assert answer.body["reason"] == "Forbidden"
    (request,) = hooks.requests
    assert request["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert (request["name"], request["namespace"]) == ("c", "default")
    assert (request["operation"], request["dryRun"]) == ("CREATE", False)
    assert request["userInfo"]["username"] == ADMIN.name
    assert request["object"]["data"] == {"a": "b"}
    assert request["object"]["kind"] == "ConfigMap"
    assert request["oldObject"] is None
    assert request["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
    assert (await api.list_default(CONFIG_MAP))["items"] == []


@with_hooks
async def test_refusal_without_a_status_has_the_code_and_text_of_kubernetes(
    api: Api, hooks: WebhookServer
) -> None:
    await configure(api, webhook(hooks.on("/deny", allow(allowed=False)), rule("configmaps")))
    answer = await post(api, config_map())
    assert answer.code == 400
    assert answer.body["message"] == (
        'admission webhook "check.example.com" denied the request without explanation'
    )
    hooks.on("/deny", allow(allowed=False, status={"reason": "Teapot", "code": 200}))
    answer = await post(api, config_map())
    assert (answer.code, answer.body["message"].rpartition(": ")[2]) == (400, "Teapot")


@with_hooks
async def test_update_patch_and_delete_show_both_states(api: Api, hooks: WebhookServer) -> None:
    await api.create(CONFIG_MAP, config_map())
    await configure(api, webhook(hooks.on("/ok", allow()), rule("configmaps")))
    await api.patch(CONFIG_MAP, "c", {"data": {"a": "c"}})
    live = await api.get(CONFIG_MAP, "c")
    live["data"]["a"] = "d"
    assert (await api.ask("PUT", CONFIG_MAP.url_path("default", "c"), live)).code == 200
    apply = {"apiVersion": "v1", "kind": "ConfigMap", **config_map(), "data": {"x": "y"}}
    headers = {"content-type": "application/apply-patch+yaml"}
    path = CONFIG_MAP.url_path("default", "c")
    answer = await api.ask("PATCH", path, apply, headers=headers, query={"fieldManager": "me"})
    assert answer.code == 200
    options = {"gracePeriodSeconds": 0}
    assert (await api.delete(CONFIG_MAP, "c", options)).code == 200
    shown = [
        (r["operation"], r["options"]["kind"], r["object"] and r["object"]["data"])
        for r in hooks.requests
    ]
    assert shown == [
        ("UPDATE", "PatchOptions", {"a": "c"}),
        ("UPDATE", "UpdateOptions", {"a": "d"}),
        ("UPDATE", "PatchOptions", {"a": "d", "x": "y"}),
        ("DELETE", "DeleteOptions", None),
    ]
    old = [r["oldObject"]["data"] for r in hooks.requests]
    assert old == [{"a": "b"}, {"a": "c"}, {"a": "d"}, {"a": "d", "x": "y"}]
    assert hooks.requests[-1]["options"]["gracePeriodSeconds"] == 0
    assert hooks.requests[2]["options"]["fieldManager"] == "me"


@with_hooks
async def test_deletion_can_be_refused_also_of_one_object_of_a_collection(
    api: Api, hooks: WebhookServer
) -> None:
    await api.create(CONFIG_MAP, config_map("a"), config_map("b"))
    config = hooks.on("/keep", lambda r: {"allowed": r["oldObject"]["metadata"]["name"] != "b"})
    await configure(api, webhook(config, rule("configmaps", operations=("DELETE",))))
    assert (await api.delete(CONFIG_MAP, "b")).code == 400
    answer = await api.ask("DELETE", CONFIG_MAP.url_path("default"))
    assert answer.code == 400
    assert [one["metadata"]["name"] for one in (await api.list_default(CONFIG_MAP))["items"]] == [
        "b"
    ]
    assert [r.get("name") for r in hooks.requests] == ["b", None, None]


@with_hooks
async def test_warnings_reach_the_client_and_annotations_the_audit_log(
    api: Api, hooks: WebhookServer
) -> None:
    remarks = allow(warnings=["old"], auditAnnotations={"rule": "7"})
    await configure(api, webhook(hooks.on("/warn", remarks), rule("configmaps")))
    lines: list[bytes] = []
    api.server.audit = AuditLog(lines.extend, WallClock())
    answer = await post(api, config_map())
    api.server.audit.close()
    assert answer.code == 201
    assert answer.header_values("warning") == ['299 - "old"']
    assert orjson.loads(lines[0])["annotations"] == {"check.example.com/rule": "7"}


@with_hooks
async def test_dry_run_and_review_version_are_shown(api: Api, hooks: WebhookServer) -> None:
    versions = ["v9", "v1beta1", "v1"]
    config = hooks.on("/ok", allow(uid=""))
    await configure(api, webhook(config, rule("configmaps"), admissionReviewVersions=versions))
    assert (await post(api, config_map(), dryRun="All")).code == 201
    (request,) = hooks.requests
    assert request["dryRun"] is True
    assert request["options"]["dryRun"] == ["All"]
    assert (await api.list_default(CONFIG_MAP))["items"] == []


# ---- which requests a webhook sees ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "seen"),
    [
        ([rule("configmaps")], True),
        ([rule("*")], True),
        ([rule("*/*")], True),
        ([rule("configmaps/*")], True),
        ([rule("configmaps/status")], False),
        ([rule("pods"), rule("configmaps")], True),
        ([rule("configmaps", operations=("UPDATE", "DELETE"))], False),
        ([rule("configmaps", apiGroups=["apps"])], False),
        ([rule("configmaps", apiVersions=["v2"])], False),
        ([rule("configmaps", scope="Namespaced")], True),
        ([rule("configmaps", scope="Cluster")], False),
        ([], False),
    ],
)
def test_rules_select_requests(rules: list[Object], seen: bool, tmp_path: Path) -> None:
    async def trial(api: Api, hooks: WebhookServer) -> None:
        await configure(api, webhook(hooks.on("/deny", deny()), *rules))
        assert (await post(api, config_map())).code == (400 if seen else 201)

    with_hooks(trial)(tmp_path)


@pytest.mark.parametrize(
    ("facts", "seen"),
    [
        ({"objectSelector": {"matchLabels": {"a": "b"}}}, True),
        ({"objectSelector": {"matchLabels": {"a": "c"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}, True),
        ({"namespaceSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}, False),
        ({"matchConditions": condition("object.data.a == 'b'")}, True),
        ({"matchConditions": condition("request.operation == 'UPDATE'")}, False),
        ({"matchConditions": condition("'system:masters' in request.userInfo.groups")}, True),
        ({"matchConditions": condition("oldObject == null")}, True),
        ({"failurePolicy": "Ignore", "matchConditions": condition("object.data.z == 'b'")}, False),
    ],
)  # fmt: skip
def test_selectors_and_conditions_select_requests(
    facts: Object, seen: bool, tmp_path: Path
) -> None:
    async def trial(api: Api, hooks: WebhookServer) -> None:
        await configure(api, webhook(hooks.on("/deny", deny()), rule("configmaps"), **facts))
        answer = await post(api, config_map(labels={"a": "b"}))
        assert answer.code == (400 if seen else 201)

    with_hooks(trial)(tmp_path)


@with_hooks
async def test_condition_that_fails_refuses_the_request_unless_another_is_false(
    api: Api, hooks: WebhookServer
) -> None:
    broken = {"name": "broken", "expression": "object.zzz.y == 1"}
    config = hooks.on("/ok", allow())
    await configure(api, webhook(config, rule("configmaps"), matchConditions=[broken]))
    answer = await post(api, config_map())
    assert answer.code == 403
    assert "no such key: zzz" in answer.body["message"]
    never = {"name": "never", "expression": "false"}
    both = webhook(config, rule("configmaps"), matchConditions=[broken, never])
    path = VALIDATING_WEBHOOK_CONFIGURATION.url_path("", "hooks")
    live = await api.get(VALIDATING_WEBHOOK_CONFIGURATION, "hooks", "")
    assert (await api.ask("PUT", path, {**live, "webhooks": [both]})).code == 200
    assert (await post(api, config_map())).code == 201
    assert hooks.requests == []


@with_hooks
async def test_equivalent_version_is_converted_and_exact_is_not(
    api: Api, hooks: WebhookServer
) -> None:
    old = rule("podgroups", apiGroups=["scheduling.k8s.io"], apiVersions=["v1alpha2"])
    config = hooks.on("/ok", allow())
    await configure(
        api,
        webhook(config, old, name="equivalent.example.com"),
        webhook(config, old, name="exact.example.com", matchPolicy="Exact"),
    )
    group = {
        "metadata": {"name": "g", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": {"all": {}}},
    }
    assert (await post(api, group, POD_GROUP)).code == 201
    (request,) = hooks.requests
    assert request["kind"]["version"] == request["resource"]["version"] == "v1alpha2"
    assert request["requestKind"]["version"] == POD_GROUP.version
    assert request["object"]["apiVersion"] == "scheduling.k8s.io/v1alpha2"
    assert request["object"]["spec"]["disruptionMode"] == "PodGroup"


@with_hooks
async def test_configurations_of_admission_are_exempt(api: Api, hooks: WebhookServer) -> None:
    await configure(api, webhook(hooks.on("/deny", deny()), rule("*/*")))
    await configure(api, webhook(hooks.on("/deny", deny()), rule("*/*")), name="second")
    path = VALIDATING_WEBHOOK_CONFIGURATION.url_path("")
    assert (await post(api, config_map())).code == 400
    assert (await api.ask("DELETE", path)).code == 200
    assert (await post(api, config_map())).code == 201


@with_hooks
async def test_namespaces_are_selected_by_their_own_labels(api: Api, hooks: WebhookServer) -> None:
    selector = {"matchLabels": {"team": "a"}}
    cluster = rule("namespaces", scope="Cluster", operations=("CREATE", "UPDATE"))
    await configure(api, webhook(hooks.on("/deny", deny()), cluster, namespaceSelector=selector))
    path = NAMESPACE.url_path()
    assert (await api.ask("POST", path, {"metadata": {"name": "b"}})).code == 201
    labelled = {"metadata": {"name": "a", "labels": {"team": "a"}}}
    assert (await api.ask("POST", path, labelled)).code == 400
    assert hooks.requests[0]["namespace"] == "a"


# ---- actions and subresources --------------------------------------------------------------------


@with_hooks
async def test_bindings_and_evictions_are_reviewed(api: Api, hooks: WebhookServer) -> None:
    await api.create(NODE, node("n"))
    (one, two) = await api.create(POD, pod("a"), pod("b"))
    actions = rule("pods/binding", "pods/eviction", operations=("CREATE",))
    await configure(api, webhook(hooks.on("/deny", deny()), actions))
    assert (await api.bind("a", "n")).code == 400
    assert (await api.bind_group((one, "n"), (two, "n"))).code == 400
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    answer = await api.ask("POST", POD.url_path("default", "a", "eviction"), eviction)
    assert answer.code == 400
    shown = [(r["kind"]["kind"], r["subResource"], r["name"]) for r in hooks.requests]
    assert sorted(shown) == [
        ("Binding", "binding", "a"),
        ("Binding", "binding", "a"),
        ("Binding", "binding", "b"),
        ("Eviction", "eviction", "a"),
    ]
    hooks.on("/deny", allow())
    assert (await api.bind_group((one, "n"), (two, "n"))).code == 201


@with_hooks
async def test_group_evictions_are_reviewed_as_deletions_of_pods(
    api: Api, hooks: WebhookServer
) -> None:
    (one,) = await api.create(POD, pod("a"))
    deletes = rule("pods", operations=("DELETE",))
    await configure(api, webhook(hooks.on("/deny", deny()), deletes))
    body = {"pods": [{"name": "a", "uid": one["metadata"]["uid"]}], "reason": "R", "message": "m"}
    path = GROUP_EVICTION.url_path("default")
    assert (await api.ask("POST", path, body)).code == 400
    hooks.on("/deny", allow())
    assert (await api.ask("POST", path, body)).code == 201
    assert [r["operation"] for r in hooks.requests] == ["DELETE", "DELETE"]


@with_hooks
async def test_scale_is_reviewed_and_changed_as_a_scale(api: Api, hooks: WebhookServer) -> None:
    template = {
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    await api.create(DEPLOYMENT, {"metadata": {"name": "d", "namespace": "default"}, "spec": spec})
    config = hooks.on("/patch", patch({"op": "replace", "path": "/spec/replicas", "value": 7}))
    await configure(api, webhook(config, rule("deployments/scale")), mutating=True)
    answer = await api.patch(DEPLOYMENT, "d", {"spec": {"replicas": 3}}, part="scale")
    assert (answer.code, answer.body["spec"]) == (200, {"replicas": 7})
    (request,) = hooks.requests
    assert (request["kind"]["kind"], request["resource"]["group"]) == ("Scale", "apps")
    assert request["object"]["spec"] == {"replicas": 3}


@with_hooks
async def test_lease_renewals_are_reviewed_one_by_one(api: Api, hooks: WebhookServer) -> None:
    spec = {"holderIdentity": "h"}
    for name in "ab":
        await api.create(LEASE, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    await configure(
        api, webhook(hooks.on("/a", lambda r: {"allowed": r["name"] == "a"}), rule("leases"))
    )
    leases = [{"name": "a"}, {"name": "b"}, {"name": "a2"}, {"name": "a", "holderIdentity": "h"}]
    body = {"renewTime": "2027-01-15T08:00:00.000000Z", "leases": leases}
    answer = await api.ask("POST", LEASE_RENEWAL.url_path("default"), body)
    assert answer.code == 201
    assert [one["name"] for one in answer.body["status"]["refused"]] == ["b", "a2"]
    assert (await api.get(LEASE, "a"))["spec"]["renewTime"] == body["renewTime"]


# ---- mutating webhooks ---------------------------------------------------------------------------


@with_hooks
async def test_patch_changes_the_object_before_defaults_and_validation(
    api: Api, hooks: WebhookServer
) -> None:
    container = {"name": "sidecar", "image": "s", "ports": [{"containerPort": 80}]}
    config = hooks.on("/patch", patch(add("/spec/containers/-", container), add("/nonsense", 1)))
    await configure(api, webhook(config, rule("pods")), mutating=True)
    (made,) = await api.create(POD, pod("p"))
    assert made["spec"]["containers"][1]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert "nonsense" not in made
    assert "uid" not in hooks.requests[0]["object"]["metadata"]
    hooks.on("/patch", patch(add("/spec/containers/0/name", "Not Valid")))
    answer = await post(api, pod("q"), POD)
    assert (answer.code, answer.cause_reasons[0][0]) == (422, "spec.containers[0].name")


@with_hooks
async def test_generated_name_is_set_after_mutation(api: Api, hooks: WebhookServer) -> None:
    await configure(api, webhook(hooks.on("/ok", allow()), rule("configmaps")), mutating=True)
    await configure(api, webhook(hooks.on("/ok", allow()), rule("configmaps")))
    body = {"metadata": {"generateName": "x-", "namespace": "default"}}
    made = (await post(api, body)).body["metadata"]["name"]
    mutating, validating = hooks.requests
    assert "name" not in mutating
    assert "name" not in mutating["object"]["metadata"]
    assert validating["object"]["metadata"]["name"] == made
    hooks.on("/ok", patch(add("/metadata/name", "chosen")))
    path = VALIDATING_WEBHOOK_CONFIGURATION.url_path("")
    await api.ask("DELETE", path)
    assert (await post(api, body)).body["metadata"]["name"] == "chosen"


@with_hooks
async def test_update_cannot_change_status_metadata_or_managed_fields(
    api: Api, hooks: WebhookServer
) -> None:
    (made,) = await api.create(POD, pod("p"))
    config = hooks.on(
        "/patch",
        patch(
            add("/status/phase", "Succeeded"), add("/metadata/generation", 70),
            add("/metadata/managedFields", []), add("/metadata/labels", {"by": "hook"}),
        ),
    )  # fmt: skip
    await configure(api, webhook(config, rule("pods")), mutating=True)
    answer = await api.patch(POD, "p", {"metadata": {"annotations": {"a": "b"}}})
    meta = answer.body["metadata"]
    assert answer.code == 200, answer.body
    assert (meta["labels"], meta["annotations"]) == ({"by": "hook"}, {"a": "b"})
    assert meta["generation"] == made["metadata"]["generation"]
    assert answer.body["status"]["phase"] == "Pending"
    assert meta["managedFields"]


@with_hooks
async def test_webhooks_run_in_order_of_names_and_again_if_needed(
    api: Api, hooks: WebhookServer
) -> None:
    def append(letter: str) -> Callable[[Object], Object]:
        def respond(request: Object) -> Object:
            text = request["object"]["data"]["a"]
            return patch(add("/data/a", text + letter))(request)

        return respond

    await configure(
        api,
        webhook(hooks.on("/c", append("c")), rule("configmaps"), name="c.example.com"),
        name="second", mutating=True,
    )  # fmt: skip
    first = webhook(
        hooks.on("/x", append("x")), rule("configmaps"), name="x.example.com",
        reinvocationPolicy="IfNeeded",
    )  # fmt: skip
    never = webhook(hooks.on("/y", append("y")), rule("configmaps"), name="y.example.com")
    await configure(api, first, never, name="first", mutating=True)
    (made,) = await api.create(CONFIG_MAP, config_map())
    assert made["data"] == {"a": "bxycx"}


@with_hooks
async def test_patch_of_a_deletion_is_an_error(api: Api, hooks: WebhookServer) -> None:
    await api.create(CONFIG_MAP, config_map())
    config = hooks.on("/patch", patch(add("/data", {})))
    await configure(api, webhook(config, rule("configmaps")), mutating=True)
    answer = await api.delete(CONFIG_MAP, "c")
    assert answer.code == 500
    assert "attempted to modify the object, which is not supported" in answer.body["message"]


@with_hooks
async def test_object_that_changes_meanwhile_is_reviewed_again(
    api: Api, hooks: WebhookServer
) -> None:
    await api.create(CONFIG_MAP, config_map())
    interrupted: list[Object] = []

    async def interrupt(request: web.Request) -> web.StreamResponse:
        """Change the object in the store while it is being reviewed, the first time."""
        if not interrupted:
            interrupted.append({})
            change = {"metadata": {"labels": {"other": "client"}}, "immutable": False}
            record = api.store.pending(CONFIG_MAP.store_key("default", "c"))
            assert record is not None
            obj = merge_patch(orjson.loads(record.value), change)
            await api.store.commit([StoreWrite(record.key, encoder(obj), record.revision)])
        del hooks.handlers["/ok"]
        answer = await hooks.serve(request)
        hooks.handlers["/ok"] = interrupt
        return answer

    config = hooks.on("/ok", allow())
    hooks.handlers["/ok"] = interrupt
    await configure(api, webhook(config, rule("configmaps")))
    answer = await api.patch(CONFIG_MAP, "c", {"data": {"x": "y"}})
    assert (answer.code, answer.body["data"]) == (200, {"a": "b", "x": "y"})
    assert answer.body["metadata"]["labels"] == {"other": "client"}
    shown = [
        (r["oldObject"]["metadata"].get("labels"), r["object"]["data"]) for r in hooks.requests
    ]
    assert shown == [(None, {"a": "b", "x": "y"}), ({"other": "client"}, {"a": "b", "x": "y"})]
    interrupted.clear()
    stale = {**answer.body, "data": {"z": "z"}}
    answer = await api.ask("PUT", CONFIG_MAP.url_path("default", "c"), stale)
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
