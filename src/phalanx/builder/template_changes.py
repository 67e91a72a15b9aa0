"""Compares and changes the templates of Workloads. Sizes of gangs can change, nothing else can.

stored                        wanted                        change
gang of 4                     gang of 8                     a patch of the list of templates
gang of 4, no priority        gang of 4, priority "high"    none: a new Workload is needed
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from phalanx.api.validation.pod_group import COMPOSITE_POD_GROUP_TEMPLATES, POD_GROUP_TEMPLATES
from phalanx.api.wire import Object
from phalanx.builder.workload_item import count_field

#: The lists of templates of a Workload or a composite template; whether they are of composites.
_LISTS = {POD_GROUP_TEMPLATES: False, COMPOSITE_POD_GROUP_TEMPLATES: True}
_SIZES = (count_field(composite=False), count_field(composite=True))
#: The fields of a template that no server sets.
_NEVER_DEFAULTED = ("schedulingConstraints", "resourceClaims")


def gang_size(template: Object, *, composite: bool = False) -> int | None:
    """Return the size of the gang of a template; None if it is not a gang."""
    policy: Object = template.get("schedulingPolicy") or {}
    size: int | None = (policy.get("gang") or {}).get(count_field(composite=composite))
    return size


def resize_templates(holder: Object, sizes: Mapping[str, int]) -> Object:
    """Return the lists of templates in which a gang gets another size, as a patch.

    `holder` is the spec of a Workload or a composite template; `sizes` has gangs by template. Each
    list is whole: a patch of a Workload, strategic or not, replaces its lists.
    """
    change: Object = {}
    for field, is_composite in _LISTS.items():
        before = list(holder.get(field) or ())
        after = [_resize_template(one, sizes, composite=is_composite) for one in before]
        if after != before:
            change[field] = after
    return change


def _resize_template(template: Object, sizes: Mapping[str, int], *, composite: bool) -> Object:
    size = sizes.get(template["name"])
    if size is not None and gang_size(template, composite=composite) is not None:
        policy = template["schedulingPolicy"]
        gang = {**policy["gang"], count_field(composite=composite): size}
        template = {**template, "schedulingPolicy": {**policy, "gang": gang}}
    return {**template, **resize_templates(template, sizes)} if composite else template


def digest_templates(spec: Object) -> str:
    """Return a digest of the templates of a Workload without the sizes of gangs."""
    found = {field: _without_sizes(spec.get(field) or []) for field in _LISTS}
    return sha256(msgspec.json.encode(found, order="deterministic")).hexdigest()


def _without_sizes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_sizes(one) for name, one in value.items() if name not in _SIZES}
    return list(map(_without_sizes, value)) if isinstance(value, list | tuple) else value


def differs_beyond_sizes(stored: Object, wanted: Object) -> bool:
    """Whether the templates of a Workload differ from wanted ones in more than sizes of gangs.

    Other fields that only the stored templates have may be the server's, and count as equal.
    """
    return any(not _contains(stored.get(field) or [], wanted.get(field) or []) for field in _LISTS)


def _contains(stored: Any, wanted: Any) -> bool:
    """Whether a stored value has all fields of a wanted one, except for sizes."""
    if isinstance(wanted, Mapping):
        if not isinstance(stored, Mapping):
            return False
        if any(stored.get(name) and not wanted.get(name) for name in _NEVER_DEFAULTED):
            return False
        compared = {name: value for name, value in wanted.items() if name not in _SIZES}
        return all(_contains(stored.get(name), value) for name, value in compared.items())
    if isinstance(wanted, list | tuple):
        is_list = isinstance(stored, list | tuple) and len(stored) == len(wanted)
        return is_list and all(map(_contains, stored, wanted))
    return bool(stored == wanted)
