"""Builders of item trees, their Workloads, and the server validation of built objects."""

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
from tests.api.cause_summaries import CauseSummaries, summarize
from tests.api.stored_objects import creation_causes

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


def build_workload(root: WorkloadItem) -> Object:
    return WorkloadBuilder(root, EVERYTHING).build(OWNER)


def template(root: WorkloadItem) -> Object:
    """Return the only top-level template of the Workload of a tree."""
    spec = build_workload(root)["spec"]
    (found,) = spec.get("podGroupTemplates") or spec["compositePodGroupTemplates"]
    assert isinstance(found, dict)
    return found


def find_errors(
    root: WorkloadItem, old: WorkloadItem | None = None, allow: Sequence[Option] = EVERYTHING
) -> CauseSummaries:
    """Return the validation errors of a tree in short form."""
    return summarize(WorkloadBuilder(root, allow).validate(old))


def errors_from_server(obj: Object) -> CauseSummaries:
    """Return the unknown fields and the validation errors of an object on the server."""
    kind = KINDS[obj["kind"]]
    assert obj["apiVersion"] == kind.api_version
    decoded = copy.deepcopy(obj)
    unknown = schema(kind.schema).normalize(decoded).unknown_fields
    return [*unknown, *creation_causes(kind, obj)]
