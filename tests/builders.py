"""Pods, nodes and gangs as manifests, in one line each; virtual time and how long to try."""

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
    """An async test as an ordinary one, run from second 0 of a loop whose time jumps."""

    @wraps(test)
    def on_the_loop(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(lambda: test(*args, **kwargs))

    return on_the_loop


def tried(share: float) -> settings:
    """How often a property is tried, as a share of what the profile says: costly ones less."""
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
    """A pod of one container that asks for these amounts, or for nothing."""
    requests = {**amounts, **(asks or {})}
    container: Object = {"name": "main", "image": "registry.example/main:1"}
    if requests:
        container["resources"] = {"requests": requests, "limits": requests}
    placed: Object = {"nodeName": on} if on else {}
    if group:
        placed["schedulingGroup"] = {"podGroupName": group}
    if held := [{"name": gate} for gate in gates]:
        placed["schedulingGates"] = held
    return _object(
        POD, name, namespace, meta, {"containers": [container], **placed, **(spec or {})}
    )


def node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    room: Mapping[str, str] | None = None,
    **amounts: str,
) -> Object:
    """A node that is ready, with 4 CPU, 8Gi and 110 pods unless said otherwise."""
    has = {"cpu": "4", "memory": "8Gi", "pods": "110", **amounts, **(room or {})}
    made = _object(NODE, name, "", {"labels": dict(labels or {})}, {})
    made["status"] = {
        "capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}],
    }  # fmt: skip
    return made


def pod_group(name: str, minimum: int, *, namespace: str = "default") -> Object:
    """A PodGroup that needs so many members at once."""
    policy = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    return _object(POD_GROUP, name, namespace, None, policy)


def gang(
    name: str, pods: int, *, minimum: int = 0, namespace: str = "default", **asks: str
) -> list[Object]:
    """A PodGroup and its members `name-0`, `name-1`, …; it needs them all unless said otherwise."""
    members = [pod(f"{name}-{n}", name, namespace=namespace, asks=asks) for n in range(pods)]
    return [pod_group(name, minimum or pods, namespace=namespace), *members]


def _object(kind: Kind, name: str, namespace: str, meta: Object | None, spec: Object) -> Object:
    where = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": kind.api_version, "kind": kind.name,
        "metadata": {"name": name, **where, **(meta or {})}, "spec": spec,
    }  # fmt: skip


def priority_class(name: str, value: int, **more: Any) -> Object:
    """A PriorityClass."""
    return {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
        "metadata": {"name": name}, **more,
    }  # fmt: skip
