"""Removes annotations of an old `workloadRef` from pods and templates that name another group.

A `workloadRef` is converted to annotations from which a controller creates the PodGroup
(`conversion/workload_references.py`). A later write that names another group does not know them;
left in place, they would create a group that the user did not ask for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from phalanx.api.conversion.workload_references import WORKLOAD_ANNOTATIONS, is_replica_group
from phalanx.api.field_tree import FieldTree, build_field_tree
from phalanx.api.wire import Object


def drop_stale_workload_annotations(struct: str, obj: Object) -> None:
    """Remove stale annotations in place from all pods and templates in an object."""
    site = _pod_spec_site(struct)
    if site is not None:
        _drop_below(site, obj)


@cache
def _pod_spec_site(struct: str) -> FieldTree[None] | None:
    return build_field_tree(struct, {"core.v1.PodSpec": [((), None)]})


def _drop_below(site: FieldTree[None], value: Any) -> None:
    if isinstance(value, dict):
        for step, inner in site.fields.items():
            if inner.rows:
                _drop_from_pod(value, value.get(step) or {})
            elif step in value:
                _drop_below(inner, value[step])
    elif isinstance(value, list) and site.item is not None:
        for item in value:
            _drop_below(site.item, item)


def _drop_from_pod(owner: Object, spec: Object) -> None:
    """Remove the stale annotations of one pod or template."""
    meta = owner.get("metadata") or {}
    said = meta.get("annotations") or {}
    if not said or not any(mark in said for mark in WORKLOAD_ANNOTATIONS):
        return
    group = (spec.get("schedulingGroup") or {}).get("podGroupName", "")
    if is_replica_group(group, said):
        return
    for mark in WORKLOAD_ANNOTATIONS:
        said.pop(mark, None)
    if not said:
        del meta["annotations"]
