"""`--limit-critical-pods`: system priority classes need a quota that selects them."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import POD, RESOURCE_QUOTA
from phalanx.api.wire import Object
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from tests.builders import in_virtual_time, pod
from tests.server.api import Api, ApiResponse

CLASSES = ("system-node-critical", "system-cluster-critical")
MESSAGE = (
    'pods "p" is forbidden: insufficient quota to match these scopes: '
    "[{PriorityClass In [system-node-critical system-cluster-critical]}]"
)


async def start(*, limited: bool = True) -> Api:
    """Start a server, by default with the limit."""
    api = Api()
    clock = api.server.context.clock
    api.server = Server(api.store, clock, SeededRandom(1), limit_critical_pods=limited)
    await api.server.start()
    return api


async def post_pod(
    api: Api, priority_class: str, namespace: str = "default", **query: object
) -> ApiResponse:
    manifest = pod("p", spec={"priorityClassName": priority_class} if priority_class else {})
    manifest["metadata"]["namespace"] = namespace
    return await api.ask("POST", POD.url_path(namespace), manifest, query=query)


def quota(*scopes: Object, pods: str = "10") -> Object:
    spec = {"hard": {"pods": pods}, "scopeSelector": {"matchExpressions": list(scopes)}}
    return {"metadata": {"name": "q", "namespace": "default"}, "spec": spec}


def scope(operator: str, *values: str, name: str = "PriorityClass") -> Object:
    return {"scopeName": name, "operator": operator, **({"values": values} if values else {})}


@pytest.mark.parametrize("priority_class", CLASSES)
@in_virtual_time
async def test_pod_of_a_system_class_needs_a_quota_that_selects_the_class(
    priority_class: str,
) -> None:
    api = await start()
    for query in ({"dryRun": "All"}, {}):
        refused = await post_pod(api, priority_class, **query)
        assert (refused.code, refused.body["message"]) == (403, MESSAGE)
    await api.create(RESOURCE_QUOTA, quota(scope("In", *CLASSES), pods="1"))
    assert (await post_pod(api, priority_class)).code == 201
    used = (await api.get(RESOURCE_QUOTA, "q"))["status"]["used"]
    assert used == {"pods": "1"}


@pytest.mark.parametrize(
    ("scopes", "code"),
    [
        ([scope("Exists")], 201),
        ([scope("NotIn", "high")], 201),
        ([scope("In", "high", "system-node-critical")], 201),
        # As in Kubernetes, the scope counts even if the quota does not cover the pod.
        ([scope("Exists"), scope("Exists", name="NotBestEffort")], 201),
        ([scope("In", "system-cluster-critical")], 403),
        ([scope("DoesNotExist")], 403),
        ([scope("Exists", name="BestEffort")], 403),
    ],
    ids=str,
)
@in_virtual_time
async def test_quota_allows_the_classes_that_its_scope_selects(
    scopes: list[Object], code: int
) -> None:
    api = await start()
    await api.create(RESOURCE_QUOTA, quota(*scopes))
    assert (await post_pod(api, "system-node-critical")).code == code


@in_virtual_time
async def test_quota_without_scopes_does_not_allow_system_classes() -> None:
    api = await start()
    plain = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"pods": "9"}}}
    await api.create(RESOURCE_QUOTA, plain)
    assert (await post_pod(api, "system-node-critical")).code == 403


@in_virtual_time
async def test_limit_applies_again_after_the_quota_is_deleted() -> None:
    api = await start()
    await api.create(RESOURCE_QUOTA, quota(scope("Exists")))
    assert (await post_pod(api, "system-node-critical", dryRun="All")).code == 201
    await api.delete(RESOURCE_QUOTA, "q")
    assert (await post_pod(api, "system-node-critical")).code == 403


@in_virtual_time
async def test_kube_system_has_a_quota_that_allows_system_classes() -> None:
    api = await start()
    assert (await post_pod(api, "system-node-critical", "kube-system")).code == 201
    path = RESOURCE_QUOTA.url_path("kube-system", "critical-pods")
    shown = (await api.ask("GET", path)).body
    assert shown["status"] == {"hard": {"pods": "1G"}, "used": {"pods": "1"}}
    await api.server.start()
    assert (await api.ask("GET", path)).body == shown


@in_virtual_time
async def test_other_pods_are_not_limited() -> None:
    api = await start()
    assert (await post_pod(api, "")).code == 201


@in_virtual_time
async def test_system_classes_are_not_limited_by_default() -> None:
    api = await start(limited=False)
    assert (await post_pod(api, "system-node-critical")).code == 201
    quotas = await api.ask("GET", RESOURCE_QUOTA.url_path("kube-system"))
    assert quotas.body["items"] == []
