"""ResourceQuotas: what they count and refuse, and what happens when they change."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest

from phalanx.api.kinds import (
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    EVENT,
    JOB,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    PRIORITY_CLASS,
    RESOURCE_QUOTA,
    SERVICE,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.server.resource_quotas import release_writes
from phalanx.store.kv import StoreWrite
from tests.api.custom_resource_definitions import custom_resource_definition, served_version
from tests.builders import in_virtual_time, node, pod
from tests.server.api import Api
from tests.server.quota_fixtures import (
    FINISHED_STATUS,
    api_with_quota,
    claim,
    config_map,
    post,
    quota,
    quota_of,
    quota_usage,
    service,
)

# ---- counting ------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_new_quota_counts_existing_objects() -> None:
    api = await Api.start()
    await api.create(POD, pod("a", cpu="500m"), pod("b", cpu="1"))
    [made] = await api.create(RESOURCE_QUOTA, quota(pods="5", requests_cpu="2"))
    assert made["status"] == {
        "hard": {"pods": "5", "requests.cpu": "2"},
        "used": {"pods": "2", "requests.cpu": "1500m"},
    }


@in_virtual_time
async def test_pods_count_until_they_finish_and_objects_until_they_are_removed() -> None:
    api = await api_with_quota(quota_of("q", {"pods": "5", "cpu": "5", "count/pods": "5"}))
    await api.create(POD, pod("a", cpu="1"), pod("b", on="n", cpu="2"))
    assert await quota_usage(api) == {"pods": "2", "cpu": "3", "count/pods": "2"}
    await api.patch(POD, "a", FINISHED_STATUS, part="status")
    assert await quota_usage(api) == {"pods": "1", "cpu": "2", "count/pods": "2"}
    await api.delete(POD, "b")
    assert await quota_usage(api) == {"pods": "1", "cpu": "2", "count/pods": "2"}
    await api.delete(POD, "b", {"gracePeriodSeconds": 0})
    assert await quota_usage(api) == {"pods": "0", "cpu": "0", "count/pods": "1"}


@in_virtual_time
async def test_an_object_with_a_finalizer_counts_until_it_is_removed() -> None:
    api = await api_with_quota(quota(configmaps="1"))
    kept = config_map("c")
    kept["metadata"]["finalizers"] = ["example.com/stay"]
    await api.create(CONFIG_MAP, kept)
    await api.delete(CONFIG_MAP, "c")
    assert await quota_usage(api) == {"configmaps": "1"}
    await api.patch(CONFIG_MAP, "c", {"metadata": {"finalizers": None}})
    assert await quota_usage(api) == {"configmaps": "0"}


@in_virtual_time
async def test_binding_a_pod_uses_nothing_more() -> None:
    api = await api_with_quota(quota(pods="1"))
    await api.create(NODE, node("n"))
    [made] = await api.create(POD, pod("a", cpu="1"))
    before = await api.get(RESOURCE_QUOTA, "q")
    assert (await api.bind_group((made, "n"))).code == 201
    assert await api.get(RESOURCE_QUOTA, "q") == before


@in_virtual_time
async def test_objects_of_any_kind_can_be_counted() -> None:
    names = {"count/jobs.batch": "5", "count/configmaps": "5", "configmaps": "5"}
    api = await api_with_quota(quota_of("q", {**names, "count/widgets.example.com": "5"}))
    spec = {"template": {"spec": {**pod("x")["spec"], "restartPolicy": "Never"}}}
    await api.create(JOB, {"metadata": {"name": "j", "namespace": "default"}, "spec": spec})
    await api.create(CONFIG_MAP, config_map("c"))
    assert await quota_usage(api) == {
        "count/jobs.batch": "1", "count/configmaps": "1", "configmaps": "1",
        "count/widgets.example.com": "0",
    }  # fmt: skip


@in_virtual_time
async def test_custom_resources_count_until_their_definition_is_removed() -> None:
    name = "count/widgets.example.com"
    api = await api_with_quota(quota_of("q", {name: "2"}))
    both = custom_resource_definition(served_version("v1"), served_version("v2", storage=False))
    await api.create(CUSTOM_RESOURCE_DEFINITION, both)
    for at, called in (("v1", "a"), ("v2", "b"), ("v1", "c")):
        kind = Kind("example.com", at, "Widget", "widgets", "")
        widget = {"metadata": {"name": called, "namespace": "default"}, "spec": {"size": 1}}
        answer = await post(api, kind, widget)
    assert f"exceeded quota: q, requested: {name}=1" in answer.body["message"]
    path = CUSTOM_RESOURCE_DEFINITION.url_path("", "widgets.example.com")
    assert (await api.ask("DELETE", path)).code == 200
    assert await quota_usage(api) == {name: "0"}


@in_virtual_time
async def test_an_object_of_a_kind_with_several_versions_counts_once() -> None:
    api = await Api.start()
    registry = api.server.context.registry
    registry.define("twice", [(replace(CONFIG_MAP, version="v2"), registry.strategy(CONFIG_MAP))])
    await api.create(CONFIG_MAP, config_map("c"))
    await api.create(RESOURCE_QUOTA, quota(configmaps="5"))
    assert await quota_usage(api) == {"configmaps": "1"}


@in_virtual_time
async def test_objects_that_are_removed_together_are_released_together() -> None:
    api = await api_with_quota(quota("a", configmaps="5"), quota("b", pods="5"))
    await api.create(CONFIG_MAP, config_map("x"), config_map("y"), config_map("z"))
    gone = api.store.range(CONFIG_MAP.store_prefix("default"))[:2]
    freed = release_writes(
        api.server.context, CONFIG_MAP, [orjson.loads(one.value) for one in gone]
    )
    await api.store.commit([*(StoreWrite(one.key, None, one.revision) for one in gone), *freed])
    assert (await quota_usage(api, "a"), await quota_usage(api, "b")) == (
        {"configmaps": "1"},
        {"pods": "0"},
    )
    assert release_writes(api.server.context, CONFIG_MAP, [{"metadata": {"name": "nowhere"}}]) == []


@in_virtual_time
async def test_events_are_not_counted() -> None:
    api = await api_with_quota(quota_of("q", {"count/events": "0"}))
    about = {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}}
    await api.create(EVENT, {"metadata": {"name": "e", "namespace": "default"}, **about})
    assert await quota_usage(api) == {"count/events": "0"}


@in_virtual_time
async def test_a_quota_counts_itself_and_others() -> None:
    api = await api_with_quota(quota("a", resourcequotas="2"), quota("b", pods="1"))
    assert await quota_usage(api, "a") == {"resourcequotas": "2"}
    answer = await post(api, RESOURCE_QUOTA, quota("c", pods="1"))
    assert answer.body["message"] == (
        'resourcequotas "c" is forbidden: exceeded quota: a, requested: resourcequotas=1, '
        "used: resourcequotas=2, limited: resourcequotas=2"
    )
    await api.delete(RESOURCE_QUOTA, "b")
    assert await quota_usage(api, "a") == {"resourcequotas": "1"}
    await api.delete(RESOURCE_QUOTA, "a")
    assert (await post(api, RESOURCE_QUOTA, quota("c", resourcequotas="0"))).code == 201
    assert await quota_usage(api, "c") == {"resourcequotas": "1"}
    changed = await api.patch(RESOURCE_QUOTA, "c", {"spec": {"hard": {"resourcequotas": "3"}}})
    assert changed.body["status"]["used"] == {"resourcequotas": "1"}


@in_virtual_time
async def test_usage_is_formatted_like_the_limit() -> None:
    api = await api_with_quota(quota("a", memory="4Gi"), quota("b", memory="4G"))
    await api.create(POD, pod("p", memory="1536Mi"))
    assert await quota_usage(api, "a") == {"memory": "1536Mi"}
    assert await quota_usage(api, "b") == {"memory": "1610612736"}


@in_virtual_time
async def test_a_quota_does_not_count_other_namespaces() -> None:
    api = await api_with_quota(quota(pods="0"))
    answer = await api.ask(
        "POST", POD.url_path("kube-public"), pod("p", namespace="kube-public", cpu="2")
    )
    assert answer.code == 201
    assert await quota_usage(api) == {"pods": "0"}


@in_virtual_time
async def test_watchers_see_the_quota_change_with_the_object() -> None:
    api = await api_with_quota(quota(pods="2"))
    since = api.store.revision
    await api.create(POD, pod("p"))
    [event] = await api.watch(RESOURCE_QUOTA, since=since)
    assert (event.type, event.object["status"]["used"]) == ("MODIFIED", {"pods": "1"})


# ---- refusing ------------------------------------------------------------------------------------


@in_virtual_time
async def test_an_object_that_exceeds_a_quota_is_refused() -> None:
    api = await api_with_quota(quota(pods="2"))
    await api.create(POD, pod("a"), pod("b"))
    answer = await post(api, POD, pod("p"))
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["message"] == (
        'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'
    )
    assert await quota_usage(api) == {"pods": "2"}
    await api.patch(POD, "a", FINISHED_STATUS, part="status")
    await api.create(POD, pod("p"))


@in_virtual_time
async def test_the_message_lists_exceeded_resources_by_name() -> None:
    api = await api_with_quota(quota(requests_memory="1Gi", pods="5", requests_cpu="500m"))
    answer = await post(api, POD, pod("p", cpu="1", memory="2Gi"))
    assert answer.body["message"] == (
        'pods "p" is forbidden: exceeded quota: q, requested: requests.cpu=1,requests.memory=2Gi, '
        "used: requests.cpu=0,requests.memory=0, limited: requests.cpu=500m,requests.memory=1Gi"
    )


@in_virtual_time
async def test_every_quota_is_checked_and_a_refusal_changes_none() -> None:
    api = await api_with_quota(quota("a", pods="5"), quota("b", requests_cpu="1"))
    assert (await post(api, POD, pod("p", cpu="2"))).code == 403
    assert (await quota_usage(api, "a"), await quota_usage(api, "b")) == (
        {"pods": "0"},
        {"requests.cpu": "0"},
    )


@pytest.mark.parametrize(
    ("hard", "why"),
    [
        ({"requests.cpu": "1"}, "requests.cpu for: b,i"),
        ({"cpu": "1"}, "cpu for: b,i"),
        ({"memory": "1Gi", "limits.cpu": "1"}, "limits.cpu for: b,i; memory for: a,b,i"),
    ],
)
@in_virtual_time
async def test_containers_must_state_limited_resources(hard: Object, why: str) -> None:
    api = await api_with_quota(quota_of("q", hard))
    asks = {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
    image = "registry.example/main:1"
    spec = {
        "containers": [{"name": "b", "image": image},
                       {"name": "a", "image": image, "resources": asks}],
        "initContainers": [{"name": "i", "image": image}],
    }  # fmt: skip
    answer = await post(api, POD, pod("p", spec=spec))
    message = f'pods "p" is forbidden: failed quota: q: must specify {why}'
    assert (answer.code, answer.body["message"]) == (403, message)


@in_virtual_time
async def test_other_resources_need_not_be_stated() -> None:
    api = await api_with_quota(
        quota_of("q", {"requests.nvidia.com/gpu": "2", "requests.storage": "1"})
    )
    await api.create(POD, pod("a"), pod("b", asks={"nvidia.com/gpu": "2"}))
    assert await quota_usage(api) == {"requests.nvidia.com/gpu": "2", "requests.storage": "0"}
    answer = await post(api, POD, pod("p", asks={"nvidia.com/gpu": "1"}))
    assert "requested: requests.nvidia.com/gpu=1" in answer.body["message"]


@in_virtual_time
async def test_a_dry_run_is_checked_and_uses_nothing() -> None:
    api = await api_with_quota(quota(pods="1"))
    assert (await post(api, POD, pod("p"), dryRun="All")).code == 201
    assert await quota_usage(api) == {"pods": "0"}
    await api.create(POD, pod("p"))
    assert (await post(api, POD, pod("b"), dryRun="All")).code == 403


@in_virtual_time
async def test_a_growing_object_is_checked_and_a_shrinking_one_is_not() -> None:
    hard = {"services.loadbalancers": "1", "services.nodeports": "2"}
    api = await api_with_quota(quota_of("q", hard))
    await api.create(SERVICE, service("a", "LoadBalancer"), service("b"))
    grown = await api.patch(SERVICE, "b", {"spec": {"type": "LoadBalancer"}})
    assert "exceeded quota: q, requested: services.loadbalancers=1" in grown.body["message"]
    balanced = ("externalTrafficPolicy", "allocateLoadBalancerNodePorts")
    shrunk = {"type": "ClusterIP", **dict.fromkeys(balanced)}
    assert (await api.patch(SERVICE, "a", {"spec": shrunk})).code == 200
    assert await quota_usage(api) == {"services.loadbalancers": "0", "services.nodeports": "0"}


@in_virtual_time
async def test_storage_requests_are_summed() -> None:
    api = await api_with_quota(quota(requests_storage="5Gi", persistentvolumeclaims="5"))
    await api.create(PERSISTENT_VOLUME_CLAIM, claim("a", "3Gi"))
    answer = await post(api, PERSISTENT_VOLUME_CLAIM, claim("b", "3Gi"))
    assert "used: requests.storage=3Gi, limited: requests.storage=5Gi" in answer.body["message"]
    assert await quota_usage(api) == {"requests.storage": "3Gi", "persistentvolumeclaims": "1"}


@in_virtual_time
async def test_shrinking_and_removing_is_allowed_over_the_limit() -> None:
    api = await api_with_quota(quota(configmaps="3", services_nodeports="3"))
    await api.create(CONFIG_MAP, config_map("a"), config_map("b"))
    wide = service("s", "NodePort")
    wide["spec"]["ports"] = [{"name": f"p{n}", "port": 80 + n} for n in range(3)]
    await api.create(SERVICE, wide)
    lowered = {"spec": {"hard": {"configmaps": "0", "services.nodeports": "0"}}}
    await api.patch(RESOURCE_QUOTA, "q", lowered)
    fewer = {"spec": {"ports": wide["spec"]["ports"][:2]}}
    assert (await api.patch(SERVICE, "s", fewer)).code == 200
    assert (await api.delete(CONFIG_MAP, "a")).code == 200
    assert await quota_usage(api) == {"configmaps": "1", "services.nodeports": "2"}


# ---- scopes --------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_quota_with_scopes_counts_only_matching_objects() -> None:
    api = await api_with_quota(
        quota("best", ["BestEffort"], pods="1"), quota("short", ["Terminating"], requests_cpu="1")
    )
    brief = {"activeDeadlineSeconds": 60}
    await api.create(POD, pod("a"), pod("b", cpu="8"), pod("c", cpu="1", spec=brief))
    assert await quota_usage(api, "best") == {"pods": "1"}
    assert await quota_usage(api, "short") == {"requests.cpu": "1"}
    assert "exceeded quota: best" in (await post(api, POD, pod("p"))).body["message"]
    answer = await post(api, POD, pod("p", cpu="1", spec=brief))
    assert "exceeded quota: short" in answer.body["message"]


@in_virtual_time
async def test_a_pod_may_move_into_the_scope_of_a_full_quota() -> None:
    api = await api_with_quota(quota("short", ["Terminating"], pods="0"))
    await api.create(POD, pod("a"))
    answer = await api.patch(POD, "a", {"spec": {"activeDeadlineSeconds": 60}})
    assert answer.code == 200
    assert await quota_usage(api, "short") == {"pods": "1"}


@in_virtual_time
async def test_the_default_priority_class_decides_the_scope() -> None:
    chosen = {"scopeName": "PriorityClass", "operator": "In", "values": ["usual"]}
    limited = quota(pods="1")
    limited["spec"]["scopeSelector"] = {"matchExpressions": [chosen]}
    api = await api_with_quota(limited)
    usual = {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True}
    await api.create(PRIORITY_CLASS, usual, {"metadata": {"name": "other"}, "value": 6})
    await api.create(POD, pod("a"), pod("b", spec={"priorityClassName": "other"}))
    assert await quota_usage(api) == {"pods": "1"}
    assert (await post(api, POD, pod("c"))).code == 403


# ---- changed quotas ------------------------------------------------------------------------------


@in_virtual_time
async def test_a_changed_quota_is_recounted_and_only_refuses_more() -> None:
    api = await api_with_quota(quota(pods="3"))
    await api.create(POD, pod("a", cpu="1"), pod("b", cpu="1"))
    changed = await api.patch(RESOURCE_QUOTA, "q", {"spec": {"hard": {"pods": "1", "cpu": "4"}}})
    assert changed.body["status"] == {
        "hard": {"pods": "1", "cpu": "4"}, "used": {"pods": "2", "cpu": "2"},
    }  # fmt: skip
    assert (await post(api, POD, pod("c", cpu="1"))).code == 403
    await api.delete(POD, "a")
    assert await quota_usage(api) == {"pods": "1", "cpu": "1"}
    await api.patch(RESOURCE_QUOTA, "q", {"spec": {"hard": {"pods": None}}})
    await api.create(POD, pod("c", cpu="1"))
    assert await quota_usage(api) == {"cpu": "2"}


@in_virtual_time
async def test_clients_cannot_set_the_usage() -> None:
    api = await api_with_quota({**quota(pods="1"), "status": {"used": {"pods": "1"}}})
    assert await quota_usage(api) == {"pods": "0"}
    lie = {"status": {"hard": {"pods": "9"}, "used": {"pods": "7"}}}
    assert (await api.patch(RESOURCE_QUOTA, "q", lie, part="status")).code == 200
    assert (await api.get(RESOURCE_QUOTA, "q"))["status"] == {
        "hard": {"pods": "1"}, "used": {"pods": "0"},
    }  # fmt: skip


@in_virtual_time
async def test_a_quota_without_limits_has_an_empty_status() -> None:
    api = await api_with_quota(quota())
    await api.create(POD, pod("p"))
    assert (await api.get(RESOURCE_QUOTA, "q"))["status"] == {}


@in_virtual_time
async def test_a_quota_counts_uncommitted_objects() -> None:
    api = await Api.start(latency=lambda: 0.5)
    requests = [
        (POD, pod("a")),
        (RESOURCE_QUOTA, quota(pods="2")),
        (POD, pod("b")),
        (POD, pod("c")),
    ]
    answers = await asyncio.gather(*(post(api, kind, obj) for kind, obj in requests))
    assert [answer.code for answer in answers] == [201, 201, 201, 403]
    assert answers[1].body["status"]["used"] == {"pods": "1"}
    assert await quota_usage(api) == {"pods": "2"}


@in_virtual_time
async def test_a_quota_that_is_being_removed_does_not_limit_later_objects() -> None:
    api = await api_with_quota(quota(pods="0"))
    _, answer = await asyncio.gather(api.delete(RESOURCE_QUOTA, "q"), post(api, POD, pod("a")))
    assert answer.code == 201


@in_virtual_time
async def test_a_namespace_without_quotas_has_no_index_record() -> None:
    api = await api_with_quota(quota("a"), quota("b"))
    assert len(api.store.range("/phalanx.dev/quotas/")) == 1
    await api.delete(RESOURCE_QUOTA, "a")
    await api.delete(RESOURCE_QUOTA, "b")
    assert api.store.range("/phalanx.dev/quotas/") == []
