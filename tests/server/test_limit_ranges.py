from __future__ import annotations

import pytest

from phalanx.api.kinds import (
    LIMIT_RANGE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    PRIORITY_CLASS,
    RESOURCE_QUOTA,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.server.limit_ranges import LIMIT_RANGER_ANNOTATION
from tests.builders import in_virtual_time, pod
from tests.server.api import Api, ApiResponse


def limit_range(*items: Object, name: str = "limits") -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"limits": list(items)}}


def containers(**bounds: Object) -> Object:
    return {"type": "Container", **bounds}


def pods(**bounds: Object) -> Object:
    return {"type": "Pod", **bounds}


def container(
    name: str,
    requests: Object | None = None,
    limits: Object | None = None,
    policy: str | None = None,
) -> Object:
    made: Object = {"name": name, "image": "registry.example/main:1"}
    made["resources"] = {"requests": requests or {}, "limits": limits or {}}
    return {**made, "restartPolicy": policy} if policy else made


def of(*made: Object, init: tuple[Object, ...] = ()) -> Object:
    """A pod with these containers."""
    spec: Object = {"containers": list(made)}
    if init:
        spec["initContainers"] = list(init)
    return pod("p", spec=spec)


def claim(storage: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}
    return {"metadata": {"name": "c", "namespace": "default"}, "spec": spec}


async def with_limits(*items: Object) -> Api:
    api = await Api.start()
    await api.create(LIMIT_RANGE, limit_range(*items))
    return api


async def made(api: Api, kind: Kind, obj: Object, **query: object) -> ApiResponse:
    return await api.ask("POST", kind.url_path("default"), obj, query=query)


# ---- defaults ------------------------------------------------------------------------------------

SET = "LimitRanger plugin set: "
DEFAULTS = [
    pytest.param(
        containers(default={"cpu": "1", "memory": "1Gi"}, defaultRequest={"cpu": "500m"}),
        container("main"),
        {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        SET + "cpu, memory request for container main; cpu, memory limit for container main",
        id="no resources: all defaults",
    ),
    pytest.param(
        containers(default={"cpu": "1"}, defaultRequest={"cpu": "500m"}),
        container("main", {"cpu": "200m"}),
        {"requests": {"cpu": "200m"}, "limits": {"cpu": "1"}},
        SET + "cpu limit for container main",
        id="stated resources are kept",
    ),
    pytest.param(
        containers(default={"cpu": "1"}, defaultRequest={"cpu": "100m"}),
        container("main", limits={"cpu": "2"}),
        {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}},
        None,
        id="a limit is also the request",
    ),
    pytest.param(
        containers(max={"cpu": "2"}),
        container("main"),
        {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}},
        SET + "cpu request for container main; cpu limit for container main",
        id="the maximum is the default limit",
    ),
    pytest.param(
        containers(min={"memory": "64Mi"}),
        container("main"),
        {"requests": {"memory": "64Mi"}},
        SET + "memory request for container main",
        id="the minimum is the default request",
    ),
    pytest.param(
        pods(max={"cpu": "2"}),
        container("main", {"cpu": "1"}, {"cpu": "1"}),
        {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
        None,
        id="pod limits are not defaults",
    ),
]


@pytest.mark.parametrize(("item", "given", "resources", "note"), DEFAULTS)
@in_virtual_time
async def test_containers_get_the_default_resources(
    item: Object, given: Object, resources: Object, note: str | None
) -> None:
    api = await with_limits(item)
    [got] = await api.create(POD, of(given))
    assert got["spec"]["containers"][0]["resources"] == resources
    assert got["metadata"].get("annotations", {}).get(LIMIT_RANGER_ANNOTATION) == note


@in_virtual_time
async def test_init_containers_get_defaults_too_and_the_annotation_names_all() -> None:
    api = await with_limits(containers(defaultRequest={"memory": "1Gi", "cpu": "1"}))
    stated = container("b", {"cpu": "1", "memory": "2Gi"})
    [got] = await api.create(POD, of(container("a"), stated, init=(container("i"),)))
    assert got["spec"]["initContainers"][0]["resources"]["requests"]["cpu"] == "1"
    assert got["metadata"]["annotations"][LIMIT_RANGER_ANNOTATION] == (
        SET + "cpu, memory request for container a; cpu, memory request for init container i"
    )


@in_virtual_time
async def test_the_first_limit_range_by_name_gives_the_default() -> None:
    api = await Api.start()
    first = limit_range(containers(defaultRequest={"cpu": "1"}), name="a")
    second = limit_range(containers(defaultRequest={"cpu": "2", "memory": "1Gi"}), name="b")
    await api.create(LIMIT_RANGE, second, first)
    [got] = await api.create(POD, of(container("main")))
    resources = got["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "1", "memory": "1Gi"}}
    note = got["metadata"]["annotations"][LIMIT_RANGER_ANNOTATION]
    assert note == SET + "cpu, memory request for container main"


@in_virtual_time
async def test_the_qos_class_is_computed_after_defaulting() -> None:
    api = await with_limits(containers(default={"cpu": "1", "memory": "1Gi"}))
    [got] = await api.create(POD, of(container("main")))
    assert got["status"]["qosClass"] == "Guaranteed"


@in_virtual_time
async def test_defaults_count_in_quotas() -> None:
    api = await with_limits(containers(defaultRequest={"cpu": "500m"}))
    quota = {"metadata": {"name": "q", "namespace": "default"}}
    await api.create(RESOURCE_QUOTA, {**quota, "spec": {"hard": {"requests.cpu": "1"}}})
    await api.create(POD, of(container("main")))
    assert (await api.get(RESOURCE_QUOTA, "q"))["status"]["used"] == {"requests.cpu": "500m"}


@in_virtual_time
async def test_limits_do_not_apply_to_other_namespaces() -> None:
    api = await with_limits(containers(default={"cpu": "1"}, max={"cpu": "1"}))
    path = POD.url_path("kube-public")
    answer = await api.ask("POST", path, pod("p", namespace="kube-public", cpu="2"))
    assert answer.code == 201


# ---- bounds --------------------------------------------------------------------------------------

CPU = {"cpu": "100m"}
BOUNDS = [
    pytest.param(
        [containers(min={"cpu": "100m"})],
        of(container("main", {"cpu": "50m"})),
        "minimum cpu usage per Container is 100m, but request is 50m",
        id="too small a request",
    ),
    pytest.param(
        [containers(min={"cpu": "100m"}, defaultRequest={"cpu": "200m"})],
        of(container("main", limits={"cpu": "50m"})),
        "minimum cpu usage per Container is 100m, but request is 50m",
        id="only the first violation of a container and bound",
    ),
    pytest.param(
        [pods(min={"memory": "1Gi"})],
        of(container("main")),
        "minimum memory usage per Pod is 1Gi.  No request is specified",
        id="a minimum requires a request",
    ),
    pytest.param(
        [containers(max={"cpu": "1"})],
        of(container("main", {"cpu": "1"}, {"cpu": "1500m"})),
        "maximum cpu usage per Container is 1, but limit is 1500m",
        id="too large a limit",
    ),
    pytest.param(
        [pods(max={"cpu": "1"})],
        of(container("main", {"cpu": "500m"})),
        "maximum cpu usage per Pod is 1.  No limit is specified",
        id="a maximum requires a limit",
    ),
    pytest.param(
        [pods(max={"memory": "1Gi"})],
        of(*(container(n, {"memory": "512Mi"}, {"memory": "768Mi"}) for n in "ab")),
        "maximum memory usage per Pod is 1Gi, but limit is 1536Mi",
        id="containers add up",
    ),
    pytest.param(
        [pods(max={"cpu": "1"})],
        of(container("main", CPU, CPU), init=(container("i", {"cpu": "2"}, {"cpu": "2"}),)),
        "maximum cpu usage per Pod is 1, but limit is 2",
        id="the largest init container counts",
    ),
    pytest.param(
        [pods(max={"cpu": "1"})],
        of(
            container("main", {"cpu": "1"}, {"cpu": "1"}),
            init=(container("i", CPU, CPU, "Always"),),
        ),
        "maximum cpu usage per Pod is 1, but limit is 1100m",
        id="sidecars add up",
    ),
    pytest.param(
        [containers(maxLimitRequestRatio={"cpu": "2"})],
        of(container("main", {"cpu": "100m"}, {"cpu": "250m"})),
        "cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000",
        id="too wide a ratio",
    ),
    pytest.param(
        [pods(maxLimitRequestRatio={"cpu": "2"})],
        of(container("main", {"cpu": "100m"})),
        "cpu max limit to request ratio per Pod is 2, but no limit is specified or limit is 0",
        id="a ratio needs a limit",
    ),
    pytest.param(
        [containers(maxLimitRequestRatio={"cpu": "2"})],
        of(container("main", {"cpu": "0"}, {"cpu": "1"})),
        "cpu max limit to request ratio per Container is 2, but no request is specified or "
        "request is 0",
        id="a ratio needs a request",
    ),
    pytest.param(
        [containers(min={"cpu": "100m", "memory": "1Gi"}), pods(max={"cpu": "10m"})],
        of(container("main", {"cpu": "50m", "memory": "1Mi"}, {"cpu": "50m", "memory": "1Mi"})),
        "[minimum cpu usage per Container is 100m, but request is 50m, "
        "minimum memory usage per Container is 1Gi, but request is 1Mi, "
        "maximum cpu usage per Pod is 10m, but limit is 50m]",
        id="all violations",
    ),
    pytest.param(
        [containers(max={"cpu": "1"})],
        of(*(container(n, {"cpu": "2"}, {"cpu": "2"}) for n in "ab")),
        "maximum cpu usage per Container is 1, but limit is 2",
        id="equal violations once",
    ),
    pytest.param(
        [containers(max={"cpu": "1"})],
        of(container("main", CPU, CPU), init=(container("i", {"cpu": "2"}, {"cpu": "2"}),)),
        "maximum cpu usage per Container is 1, but limit is 2",
        id="init containers have bounds too",
    ),
    pytest.param(
        [
            containers(min=CPU, max={"cpu": "1"}, maxLimitRequestRatio={"cpu": "10"}),
            pods(min=CPU, max={"cpu": "1"}, maxLimitRequestRatio={"cpu": "10"}),
        ],
        of(container("main", CPU, {"cpu": "1"})),
        "",
        id="equal to the bounds",
    ),
    pytest.param(
        [{"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}],
        pod("p", memory="8Gi"),
        "",
        id="claim limits do not apply to pods",
    ),
]


@pytest.mark.parametrize(("items", "wanted", "why"), BOUNDS)
@in_virtual_time
async def test_pods_out_of_bounds_are_refused(
    items: list[Object], wanted: Object, why: str
) -> None:
    api = await with_limits(*items)
    answer = await made(api, POD, wanted)
    if why:
        assert answer.code == 403
        assert answer.body["message"] == f'pods "p" is forbidden: {why}'
        assert (answer.body["reason"], answer.body["details"]["kind"]) == ("Forbidden", "pods")
    else:
        assert answer.code == 201


STORAGE = {
    "type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "4Gi"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("storage", "why"),
    [
        ("512Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 512Mi"),
        ("5Gi", "maximum storage usage per PersistentVolumeClaim is 4Gi, but request is 5Gi"),
        ("4Gi", ""),
    ],
)
@in_virtual_time
async def test_claims_out_of_bounds_are_refused(storage: str, why: str) -> None:
    api = await with_limits(STORAGE)
    answer = await made(api, PERSISTENT_VOLUME_CLAIM, claim(storage))
    refusal = f'persistentvolumeclaims "c" is forbidden: {why}' if why else None
    assert answer.body.get("message") == refusal
    assert answer.code == (403 if why else 201)


# ---- when limits apply ---------------------------------------------------------------------------


@in_virtual_time
async def test_a_dry_run_is_defaulted_and_refused_like_a_real_request() -> None:
    api = await with_limits(containers(default={"cpu": "1"}, max={"cpu": "1"}))
    answer = await made(api, POD, of(container("main")), dryRun="All")
    assert answer.body["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1"}
    assert (await made(api, POD, pod("p", cpu="2"), dryRun="All")).code == 403


@in_virtual_time
async def test_an_existing_pod_is_not_checked_against_later_limits() -> None:
    api = await Api.start()
    await api.create(POD, pod("p", cpu="2"))
    await api.create(LIMIT_RANGE, limit_range(containers(max={"cpu": "1"})))
    answer = await api.patch(POD, "p", {"metadata": {"labels": {"a": "b"}}})
    assert answer.code == 200
    assert LIMIT_RANGER_ANNOTATION not in answer.body["metadata"].get("annotations", {})


@in_virtual_time
async def test_an_updated_claim_is_checked_unless_it_is_being_deleted() -> None:
    api = await Api.start()
    kept = claim("8Gi")
    kept["metadata"]["finalizers"] = ["example.com/stay"]
    await api.create(PERSISTENT_VOLUME_CLAIM, kept)
    await api.create(LIMIT_RANGE, limit_range(STORAGE))
    labels = {"metadata": {"labels": {"a": "b"}}}
    assert (await api.patch(PERSISTENT_VOLUME_CLAIM, "c", labels)).code == 403
    await api.delete(PERSISTENT_VOLUME_CLAIM, "c")
    assert (await api.patch(PERSISTENT_VOLUME_CLAIM, "c", labels)).code == 200


@in_virtual_time
async def test_a_status_update_of_a_claim_is_not_checked() -> None:
    api = await Api.start()
    await api.create(PERSISTENT_VOLUME_CLAIM, claim("8Gi"))
    await api.create(LIMIT_RANGE, limit_range(STORAGE))
    bound = {"status": {"phase": "Bound"}}
    assert (await api.patch(PERSISTENT_VOLUME_CLAIM, "c", bound, part="status")).code == 200


@in_virtual_time
async def test_validation_errors_come_before_limit_range_errors() -> None:
    api = await with_limits(containers(max={"cpu": "1"}))
    bad = of(container("main", {"cpu": "3"}, {"cpu": "2"}))
    assert (await made(api, POD, bad)).code == 422


@in_virtual_time
async def test_a_missing_priority_class_is_reported_before_limit_range_errors() -> None:
    api = await with_limits(containers(default={"cpu": "1"}, max={"cpu": "1"}))
    missing = pod("p", cpu="2", spec={"priorityClassName": "none"})
    answer = await made(api, POD, missing)
    assert "no PriorityClass with name none was found" in answer.body["message"]
    await api.create(PRIORITY_CLASS, {"metadata": {"name": "none"}, "value": 5})
    assert "maximum cpu usage" in (await made(api, POD, missing)).body["message"]
