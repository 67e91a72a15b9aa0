"""Workloads and PodGroups in versions whose fields differ from the stored one, and requests."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import (
    POD_GROUP,
    POD_GROUP_V1ALPHA1,
    POD_GROUP_V1ALPHA2,
    POD_GROUP_V1ALPHA3,
    WORKLOAD,
    WORKLOAD_V1ALPHA1,
    WORKLOAD_V1ALPHA2,
    WORKLOAD_V1ALPHA3,
    Kind,
)
from phalanx.api.wire import Object
from tests.server.api import Api, ApiResponse

APPLY = {"content-type": "application/apply-patch+yaml"}
WORKLOADS = (WORKLOAD_V1ALPHA2, WORKLOAD_V1ALPHA1)
POD_GROUPS = (POD_GROUP_V1ALPHA2, POD_GROUP_V1ALPHA1)
OLD_KINDS = (*WORKLOADS, *POD_GROUPS)
ALL_GROUPS = (*POD_GROUPS, POD_GROUP_V1ALPHA3, POD_GROUP)
ALL_WORKLOADS = (*WORKLOADS, WORKLOAD_V1ALPHA3, WORKLOAD)


def for_kinds(*kinds: Kind) -> pytest.MarkDecorator:
    """Runs a test for each of these kinds."""
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: f"{kind.name}-{kind.version}")


each, each_workload, each_group = (
    for_kinds(*OLD_KINDS),
    for_kinds(*WORKLOADS),
    for_kinds(*POD_GROUPS),
)

GANG = {"gang": {"minCount": 2}}
REFERENCE = {"workloadName": "w", "podGroupTemplateName": "a"}
LEAF: Object = {"name": "a", "schedulingPolicy": GANG, "preemptionPolicy": "Never"}
TREE: Object = {
    "compositePodGroupTemplates": [
        {"name": "tree", "schedulingPolicy": {"basic": {}}, "podGroupTemplates": [LEAF]}
    ]
}


def template_fields(kind: Kind) -> tuple[str, str]:
    """The fields of a version for the templates of a Workload and for their policy."""
    return ("podGroups", "policy") if "1alpha1" in kind.version else (
        "podGroupTemplates", "schedulingPolicy",
    )  # fmt: skip


def new_object(kind: Kind, name: str, **spec: Any) -> Object:
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, "spec": spec}


def example(kind: Kind, name: str = "x") -> Object:
    """The smallest object of a kind."""
    if kind.name == "PodGroup":
        return new_object(kind, name, schedulingPolicy=GANG)
    templates, policy = template_fields(kind)
    return new_object(kind, name, **{templates: [{"name": "a", policy: GANG}]})


def pod_group_with_reference(kind: Kind, name: str = "g", **spec: Any) -> Object:
    return new_object(kind, name, podGroupTemplateRef={"workload": REFERENCE}, **spec)


async def post_object(api: Api, kind: Kind, obj: Object) -> ApiResponse:
    return await api.ask("POST", kind.url_path("default"), obj)


async def put_object(api: Api, kind: Kind, obj: Object) -> ApiResponse:
    return await api.ask("PUT", kind.url_path("default", obj["metadata"]["name"]), obj)


async def apply_object(
    api: Api, kind: Kind, obj: Object, manager: str = "me", **query: str
) -> ApiResponse:
    path, query = (
        kind.url_path("default", obj["metadata"]["name"]),
        {"fieldManager": manager, **query},
    )
    return await api.ask("PATCH", path, obj, headers=APPLY, query=query)


async def api_with_workload(**spec: Any) -> Api:
    """A server with the Workload `w`."""
    api = await Api.start()
    await api.create(WORKLOAD, new_object(WORKLOAD, "w", **(spec or {"podGroupTemplates": [LEAF]})))
    return api
