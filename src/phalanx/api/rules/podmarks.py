"""Marks on pods and templates of pods, held against the group that they name.

A `workloadRef` leaves marks behind, from which a controller makes the group (`podlinks.py`).
Whoever names another group later, by whatever request, knows nothing of them: they would have a
group made that nobody asked for. So they go from all that is written and is of another group, or
of none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from phalanx.api.podlinks import MARKS, is_replica_group
from phalanx.api.sites import Site, sites
from phalanx.api.wire import Object


def drop_stale_marks(struct: str, obj: Object) -> None:
    """Take marks off in place, wherever pods stand in an object of a struct."""
    site = _site(struct)
    if site is not None:
        _walk(site, obj)


@cache
def _site(struct: str) -> Site[None] | None:
    return sites(struct, {"core.v1.PodSpec": [((), None)]})


def _walk(site: Site[None], value: Any) -> None:
    if isinstance(value, dict):
        for step, inner in site.fields.items():
            if inner.rows:
                _tidy(value, value.get(step) or {})
            elif step in value:
                _walk(inner, value[step])
    elif isinstance(value, list) and site.item is not None:
        for item in value:
            _walk(site.item, item)


def _tidy(owner: Object, spec: Object) -> None:
    """The marks of one pod or template."""
    meta = owner.get("metadata") or {}
    said = meta.get("annotations") or {}
    if not said or not any(mark in said for mark in MARKS):
        return
    group = (spec.get("schedulingGroup") or {}).get("podGroupName", "")
    if is_replica_group(group, said):
        return
    for mark in MARKS:
        said.pop(mark, None)
    if not said:
        del meta["annotations"]
