"""Manifests of pods, nodes and gangs in one line; virtual time; sizes of property tests."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from hypothesis import settings

from phalanx.api.kinds import NODE, POD, POD_GROUP, Kind
from phalanx.api.wire import Object
from phalanx.sim.virtual_time import run_virtual

P = ParamSpec("P")
T = TypeVar("T")


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run an async test on a loop with virtual time that starts at 0."""

    @wraps(test)
    def run_test(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(lambda: test(*args, **kwargs))

    return run_test


def share_of_examples(share: float) -> settings:
    """Return settings with a share of the profile's examples, for slow properties."""
    return settings(max_examples=max(int(settings().max_examples * share), 1))


def pod(
    name: str,
    group: str = "",
    *,
    namespace: str = "default",
    on: str = "",
    gates: Iterable[str] = (),
    asks: Mapping[str, str] | None = None,
    meta: Object | None = None,
    spec: Object | None = None,
    **amounts: str,
) -> Object:
    """Return a pod with one container that requests these amounts."""
    requests = {**amounts, **(asks or {})}
    container: Object = {"name": "main", "image": "registry.example/main:1"}
    if requests:
        container["resources"] = {"requests": requests, "limits": requests}
    scheduling: Object = {"nodeName": on} if on else {}
    if group:
        scheduling["schedulingGroup"] = {"podGroupName": group}
    if scheduling_gates := [{"name": gate} for gate in gates]:
        scheduling["schedulingGates"] = scheduling_gates
    return _object(
        POD, name, namespace, meta, {"containers": [container], **scheduling, **(spec or {})}
    )


def node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    capacity: Mapping[str, str] | None = None,
    **amounts: str,
) -> Object:
    """Return a ready node, by default with 4 CPU, 8Gi and 110 pods."""
    resources = {"cpu": "4", "memory": "8Gi", "pods": "110", **amounts, **(capacity or {})}
    manifest = _object(NODE, name, "", {"labels": dict(labels or {})}, {})
    manifest["status"] = {
        "capacity": resources,
        "allocatable": resources,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return manifest


def pod_group(name: str, minimum: int, *, namespace: str = "default") -> Object:
    """Return a PodGroup with this minCount."""
    policy = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    return _object(POD_GROUP, name, namespace, None, policy)


def gang(
    name: str, pods: int, *, minimum: int = 0, namespace: str = "default", **asks: str
) -> list[Object]:
    """Return a PodGroup and its members `name-0`, `name-1`, …; by default it needs all of them."""
    members = [pod(f"{name}-{n}", name, namespace=namespace, asks=asks) for n in range(pods)]
    return [pod_group(name, minimum or pods, namespace=namespace), *members]


def _object(kind: Kind, name: str, namespace: str, meta: Object | None, spec: Object) -> Object:
    namespace_field = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": kind.api_version, "kind": kind.name,
        "metadata": {"name": name, **namespace_field, **(meta or {})}, "spec": spec,
    }  # fmt: skip


def priority_class(name: str, value: int, **more: Any) -> Object:
    """Return a PriorityClass."""
    return {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
        "metadata": {"name": name}, **more,
    }  # fmt: skip
