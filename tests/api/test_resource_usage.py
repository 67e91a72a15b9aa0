from __future__ import annotations

import pytest

from phalanx.api.kinds import (
    CONFIG_MAP,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RESOURCE_QUOTA,
    SERVICE,
    Kind,
)
from phalanx.api.quota_usage import (
    MILLI_PER_UNIT,
    counts_for,
    format_milli,
    has_usage_evaluator,
    object_usage,
)
from phalanx.api.wire import Object
from tests.builders import pod

GI = 2**30


def finished_pod(obj: Object) -> Object:
    return {**obj, "status": {"phase": "Succeeded"}}


def service(service_type: str, *ports: Object, **spec: object) -> Object:
    return {"metadata": {"name": "s"}, "spec": {"type": service_type, "ports": list(ports), **spec}}


def claim(storage: str, **spec: object) -> Object:
    request = {"resources": {"requests": {"storage": storage}}}
    return {"metadata": {"name": "c"}, "spec": {**request, **spec}}


ASKS = {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}
GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("kind", "obj", "counted"),
    [
        pytest.param(
            POD,
            pod("p", cpu="500m", memory="1Gi"),
            {
                "count/pods": 1, "pods": 1, "cpu": 0.5, "requests.cpu": 0.5, "limits.cpu": 0.5,
                "memory": GI, "requests.memory": GI, "limits.memory": GI,
            },
            id="a pod",
        ),
        pytest.param(POD, pod("p"), {"count/pods": 1, "pods": 1}, id="a pod without requests"),
        pytest.param(POD, finished_pod(pod("p", cpu="1")), {"count/pods": 1}, id="a finished pod"),
        pytest.param(
            POD,
            pod("p", asks={GPU: "2"}),
            {"count/pods": 1, "pods": 1, GPU: 2, f"requests.{GPU}": 2, f"limits.{GPU}": 2},
            id="devices",
        ),
        pytest.param(
            POD,
            pod("p", spec={"containers": [{"name": "a", "resources": ASKS}],
                           "overhead": {"cpu": "1", "memory": "1Gi"}}),
            {
                "count/pods": 1, "pods": 1, "cpu": 2, "requests.cpu": 2, "limits.cpu": 3,
                "memory": GI, "requests.memory": GI,
            },
            id="overhead adds to requests and to stated limits",
        ),
        pytest.param(
            POD,
            pod("p", cpu="1", spec={"resources": ASKS}),
            {"count/pods": 1, "pods": 1, "cpu": 1, "requests.cpu": 1, "limits.cpu": 2},
            id="pod-level resources replace those of containers",
        ),
        pytest.param(CONFIG_MAP, {}, {"count/configmaps": 1, "configmaps": 1}, id="a config map"),
        pytest.param(JOB, {}, {"count/jobs.batch": 1, "jobs.batch": 1}, id="a job"),
        pytest.param(
            PERSISTENT_VOLUME_CLAIM,
            claim("1Gi"),
            {
                "count/persistentvolumeclaims": 1, "persistentvolumeclaims": 1,
                "requests.storage": GI,
            },
            id="a claim",
        ),
        pytest.param(
            PERSISTENT_VOLUME_CLAIM,
            claim("1500m", storageClassName="gold"),
            {
                "count/persistentvolumeclaims": 1, "persistentvolumeclaims": 1,
                "requests.storage": 2,
                "gold.storageclass.storage.k8s.io/persistentvolumeclaims": 1,
                "gold.storageclass.storage.k8s.io/requests.storage": 2,
            },
            id="a claim with a storage class, in whole bytes",
        ),
    ],
)  # fmt: skip
def test_an_object_uses(kind: Kind, obj: Object, counted: Object) -> None:
    assert {
        name: amount / MILLI_PER_UNIT for name, amount in object_usage(kind, obj).items()
    } == counted


@pytest.mark.parametrize(
    ("obj", "ports", "balancers"),
    [
        (service("ClusterIP", {"port": 80}), 0, 0),
        (service("NodePort", {"port": 80}, {"port": 81}), 2, 0),
        (service("LoadBalancer", {"port": 80}, {"port": 81}), 2, 1),
        (
            service(
                "LoadBalancer", {"port": 80}, {"port": 81, "nodePort": 30_000},
                allocateLoadBalancerNodePorts=False,
            ),
            1,
            1,
        ),
    ],
)  # fmt: skip
def test_a_service_uses_its_node_ports(obj: Object, ports: int, balancers: int) -> None:
    assert object_usage(SERVICE, obj) == {
        "count/services": MILLI_PER_UNIT,
        "services": MILLI_PER_UNIT,
        "services.nodeports": ports * MILLI_PER_UNIT,
        "services.loadbalancers": balancers * MILLI_PER_UNIT,
    }


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (POD, ("count/pods", "pods", "cpu", "requests.memory", "limits.cpu", f"requests.{GPU}",
               "hugepages-2Mi", "requests.hugepages-2Mi", "requests.ephemeral-storage", GPU)),
        (SERVICE, ("count/services", "services", "services.nodeports", "services.loadbalancers")),
        (PERSISTENT_VOLUME_CLAIM, ("persistentvolumeclaims", "requests.storage",
                                   "gold.storageclass.storage.k8s.io/requests.storage")),
        (JOB, ("count/jobs.batch",)),
        (RESOURCE_QUOTA, ("resourcequotas", "count/resourcequotas")),
    ],
)  # fmt: skip
def test_only_kinds_that_can_use_a_resource_are_counted(kind: Kind, names: tuple[str, ...]) -> None:
    assert [name for name in names if not counts_for(kind, name)] == []
    others = (POD, SERVICE, PERSISTENT_VOLUME_CLAIM, JOB, RESOURCE_QUOTA, CONFIG_MAP)
    plain = [name for name in names if "storageclass" not in name]
    assert [(o.name, n) for o in others if o is not kind for n in plain if counts_for(o, n)] == []


def test_the_usage_of_an_object_is_possible_for_its_kind() -> None:
    objects = [
        (POD, pod("p", cpu="1", memory="1Gi", asks={GPU: "1", "hugepages-2Mi": "2Mi"})),
        (PERSISTENT_VOLUME_CLAIM, claim("1Gi", storageClassName="gold")),
        (SERVICE, service("LoadBalancer", {"port": 80})),
        (CONFIG_MAP, {}),
    ]
    for kind, obj in objects:
        assert [name for name in object_usage(kind, obj) if not counts_for(kind, name)] == []


def test_the_content_matters_only_for_some_kinds() -> None:
    kinds = (POD, SERVICE, PERSISTENT_VOLUME_CLAIM, CONFIG_MAP, JOB)
    assert [kind.name for kind in kinds if has_usage_evaluator(kind)] == [
        "Pod", "Service", "PersistentVolumeClaim",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("amount", "like", "text"),
    [
        (1500, "4", "1500m"),
        (1536 * 2**20 * MILLI_PER_UNIT, "4Gi", "1536Mi"),
        (1536 * 2**20 * MILLI_PER_UNIT, "4G", "1610612736"),
        (2000 * MILLI_PER_UNIT, "4Gi", "2000"),
        (2000 * MILLI_PER_UNIT, "4", "2k"),
        (500, "4Gi", "500m"),
        (0, "4Gi", "0"),
        (-MILLI_PER_UNIT, "4", "-1"),
    ],
)
def test_amounts_are_formatted_like_the_limit(amount: int, like: str, text: str) -> None:
    assert format_milli(amount, like) == text
