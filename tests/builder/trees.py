"""Trees in few words, their Workloads, and what the API server says of what is made of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD_GROUP, WORKLOAD
from phalanx.api.schema import schema
from phalanx.api.wire import Object
from phalanx.builder import (
    All,
    Basic,
    Gang,
    SchedulingConfig,
    Single,
    WorkloadBuilder,
    WorkloadItem,
)
from phalanx.builder.config import DisruptionMode, Option, Policy
from tests.api.findings import Findings, told
from tests.api.making import refused

EVERYTHING: tuple[Option, ...] = (Basic, Gang, Single, All)
KINDS = {kind.name: kind for kind in (WORKLOAD, POD_GROUP, COMPOSITE_POD_GROUP)}
OWNER: Object = {
    "apiVersion": "example.com/v1",
    "kind": "Training",
    "metadata": {"name": "llm", "namespace": "team", "uid": "uid-123"},
}


def config(
    policy: Policy | None = None, mode: DisruptionMode | None = None, **more: Any
) -> SchedulingConfig:
    return SchedulingConfig(policy=policy, disruption_mode=mode, **more)


def leaf(name: str = "workers", user: SchedulingConfig | None = None, **more: Any) -> WorkloadItem:
    return WorkloadItem(name, user=user or config(), **more)


def composite(
    name: str, *children: WorkloadItem, user: SchedulingConfig | None = None, **more: Any
) -> WorkloadItem:
    return WorkloadItem(name, user=user or config(), children=children, **more)


def built(root: WorkloadItem) -> Object:
    return WorkloadBuilder(root, EVERYTHING).build(OWNER)


def template(root: WorkloadItem) -> Object:
    """The one template at the top of the Workload of a tree."""
    spec = built(root)["spec"]
    (found,) = spec.get("podGroupTemplates") or spec["compositePodGroupTemplates"]
    assert isinstance(found, dict)
    return found


def wrong(
    root: WorkloadItem, old: WorkloadItem | None = None, allow: Sequence[Option] = EVERYTHING
) -> Findings:
    """What is wrong with a tree, in short."""
    return told(WorkloadBuilder(root, allow).validate(old))


def refused_by_server(obj: Object) -> Findings:
    """What a server would say of an object: what it does not know of it, and what is wrong."""
    kind = KINDS[obj["kind"]]
    assert obj["apiVersion"] == kind.api_version
    sent = copy.deepcopy(obj)
    unknown = schema(kind.schema).conform(sent).unknown
    return [*unknown, *refused(kind, obj)]
