"""Structs in which objects are read: every field stands in the schema under the same name.

A field whose name is misspelt is never read, and nobody misses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_type_hints

import msgspec
import pytest

from phalanx.api.batch import Job
from phalanx.api.core import Node, Pod, Service
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.rbac import ClusterRole
from phalanx.api.scheduling import CompositePodGroup, PodGroup, Workload
from phalanx.api.schema import Schema, schema

READERS: dict[type[msgspec.Struct], str] = {
    Pod: "core.v1.Pod",
    Node: "core.v1.Node",
    Service: "core.v1.Service",
    Job: "batch.v1.Job",
    PodDisruptionBudget: "policy.v1.PodDisruptionBudget",
    ClusterRole: "rbac.v1.ClusterRole",
    Workload: "scheduling.v1beta1.Workload",
    PodGroup: "scheduling.v1beta1.PodGroup",
    CompositePodGroup: "scheduling.v1alpha3.CompositePodGroup",
}

#: What conditions of some kinds have and those of others do not.
NOT_EVERYWHERE = {"observedGeneration"}


def unknown_fields(struct: type[msgspec.Struct], shape: Schema, path: str) -> Iterator[str]:
    """The fields of a struct that its schema does not have, and those of the structs in it."""
    hints = get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        inner, where = shape.field(field.encode_name), f"{path}.{field.encode_name}"
        if inner is None:
            yield from () if field.encode_name in NOT_EVERYWHERE else (where,)
            continue
        for one in nested_structs(hints[field.name]):
            yield from unknown_fields(one, inner.items or inner.values or inner, where)


def nested_structs(hint: Any) -> list[type[msgspec.Struct]]:
    """The structs that a type is made of."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return [hint]
    return [one for part in getattr(hint, "__args__", ()) for one in nested_structs(part)]


@pytest.mark.parametrize("struct", READERS, ids=lambda struct: struct.__name__)
def test_what_is_read_is_what_is_written(struct: type[msgspec.Struct]) -> None:
    assert list(unknown_fields(struct, schema(READERS[struct]), "")) == []


def test_a_name_that_nobody_writes_is_found() -> None:
    class Port(msgspec.Struct, rename="camel"):
        host_ip: str = ""

    container = schema("core.v1.Container")
    ports = container.field("ports")
    assert ports is not None
    assert ports.items is not None
    assert list(unknown_fields(Port, ports.items, "")) == [".hostIp"]
