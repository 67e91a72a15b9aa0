"""Validation of PodGroups, CompositePodGroups and Workloads.

The three kinds share their building blocks: policy, constraints, claims, disruption mode, priority.
After creation only gang sizes of PodGroups and of the templates of a Workload may change. Whether a
parent or a Workload exists, and whether the groups of a Workload form a valid tree, is decided by
the scheduler.

A Workload is a tree of templates. Each template is checked in place; walks over the tree check
names, depth, children and priorities.

    spec                            exactly one of the two lists
      podGroupTemplates             up to 8 with unique names; none may be added or removed
      compositePodGroupTemplates    the same; each has both lists again, at most three levels deep
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from phalanx.api.errors import Cause, Causes, duplicate, invalid, required
from phalanx.api.formats import validate_dns_label, validate_dns_subdomain, validate_path_segment
from phalanx.api.scheduling import MAX_USER_PRIORITY
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    each_keyed,
    fixed_items,
    if_changed,
    if_present,
    immutable,
    mandatory,
    max_items,
    maximum,
    minimum,
    on_create,
    one_of,
    optional,
    string_format,
    struct,
    union,
    unique,
)
from phalanx.api.validation.metadata import LABEL_KEY, check_conditions
from phalanx.api.wire import Object

MAX_CLAIMS = 4
MAX_TOPOLOGY_CONSTRAINTS = 1

LABEL = string_format(validate_dns_label)
SUBDOMAIN = string_format(validate_dns_subdomain)

#: Counts of members in the status.
POD_COUNT_FIELDS = ("pendingPods", "scheduledPods", "succeededPods", "failedPods")
#: Counts that only a PodGroup has.
_OWN_COUNT_FIELDS = ("desiredPods", "preemptions", "readyPods")

#: A field and its check, as `struct` takes them.
FieldCheck = tuple[str, Check]


def _check_unchanged(new: Any, old: Any) -> Causes:
    """Refuse any change of the `basic` policy, also from or to `gang`."""
    return () if old is CREATED or new == old else [invalid("", None, IMMUTABLE)]


def _check_not_added_or_removed(new: Any, old: Any) -> Causes:
    if old is CREATED or (new is None) == (old is None):
        return ()
    detail = (
        "field cannot be cleared once set" if new is None else "field cannot be set once created"
    )
    return [invalid("", None, detail)]


def scheduling_policy(count: str) -> Check:
    """Check a basic policy, or a gang policy whose count may change."""
    size = if_present(struct((count, if_changed(mandatory(minimum(1))))))
    return all_of(
        union("basic", "gang"),
        struct(("basic", _check_unchanged), ("gang", all_of(_check_not_added_or_removed, size))),
    )


#: At most one topology level.
SCHEDULING_CONSTRAINTS: Check = struct(
    (
        "topology",
        optional(max_items(MAX_TOPOLOGY_CONSTRAINTS, each(struct(("key", mandatory(LABEL_KEY)))))),
    ),
)

_RESOURCE_CLAIM = all_of(
    union("resourceClaimName", "resourceClaimTemplateName"),
    struct(
        ("name", mandatory(LABEL)),
        ("resourceClaimName", if_present(SUBDOMAIN)),
        ("resourceClaimTemplateName", if_present(SUBDOMAIN)),
    ),
)
RESOURCE_CLAIMS: Check = max_items(MAX_CLAIMS, all_of(unique("name"), each(_RESOURCE_CLAIM)))

DISRUPTION_MODE: Check = union("single", "all")
PREEMPTION_POLICY: Check = one_of("Never", "PreemptLowerPriority")


def scheduling_fields(policy: Check, *more: FieldCheck) -> tuple[FieldCheck, ...]:
    """Return the checks that all groups share; only the policy's count may change."""
    return (
        ("schedulingPolicy", policy),
        ("schedulingConstraints", immutable(optional(SCHEDULING_CONSTRAINTS))),
        *more,
        ("disruptionMode", immutable(if_present(DISRUPTION_MODE))),
        ("priorityClassName", immutable(optional(SUBDOMAIN))),
        ("priority", immutable(optional(maximum(MAX_USER_PRIORITY)))),
        ("preemptionPolicy", immutable(if_present(PREEMPTION_POLICY))),
    )


#: The fields of a PodGroup or its template.
POD_GROUP_FIELDS = scheduling_fields(
    scheduling_policy("minCount"), ("resourceClaims", immutable(optional(RESOURCE_CLAIMS)))
)

#: Reference to a Workload and one of its templates.
WORKLOAD_REFERENCE: Check = struct(
    ("workloadName", mandatory(SUBDOMAIN)),
    ("templateName", mandatory(LABEL)),
)


def _check_parent_has_workload(new: Any, old: Any) -> Causes:
    if not new.get("parentCompositePodGroupName") or new.get("workloadRef") is not None:
        return ()
    return [required("workloadRef", "must be set when parentCompositePodGroupName is set")]


_POD_GROUP_SPEC = all_of(
    struct(
        ("parentCompositePodGroupName", immutable(if_present(SUBDOMAIN))),
        ("workloadRef", immutable(if_present(WORKLOAD_REFERENCE))),
        *POD_GROUP_FIELDS,
    ),
    on_create(_check_parent_has_workload),
)

check_pod_group: Check = struct(("spec", if_present(_POD_GROUP_SPEC)))

_CLAIM_STATUS = struct(("name", mandatory(LABEL)), ("resourceClaimName", optional(SUBDOMAIN)))


def _check_claim_statuses(new: Any, old: Any) -> Causes:
    known = {claim.get("name") for claim in new.get("spec", {}).get("resourceClaims", ())}
    statuses = new.get("status", {}).get("resourceClaimStatuses", ())
    detail = "must match the name of an entry in `spec.resourceClaims`"
    return [
        invalid(f"status.resourceClaimStatuses[{at}].name", status.get("name"), detail)
        for at, status in enumerate(statuses)
        if status.get("name") not in known
    ]


NON_NEGATIVE_COUNT = optional(minimum(0))
_SHORTFALL = struct(
    ("missingMembers", NON_NEGATIVE_COUNT),
    ("requests", optional(each(struct(("members", NON_NEGATIVE_COUNT))))),
)
_POD_GROUP_STATUS = struct(
    ("conditions", check_conditions),
    (
        "resourceClaimStatuses",
        optional(max_items(MAX_CLAIMS, all_of(unique("name"), each(_CLAIM_STATUS)))),
    ),
    *((field, NON_NEGATIVE_COUNT) for field in (*POD_COUNT_FIELDS, *_OWN_COUNT_FIELDS)),
    ("shortfall", if_present(_SHORTFALL)),
)

check_pod_group_status: Check = all_of(struct(("status", _POD_GROUP_STATUS)), _check_claim_statuses)


def _check_is_set(new: Any, old: Any) -> Causes:
    return () if new is not None else [required("")]


_COMPOSITE_SPEC = struct(
    ("parentCompositePodGroupName", immutable(if_present(SUBDOMAIN))),
    ("workloadRef", all_of(_check_is_set, immutable(if_present(WORKLOAD_REFERENCE)))),
    *scheduling_fields(immutable(scheduling_policy("minGroupCount"))),
)

check_composite_pod_group: Check = struct(("spec", if_present(_COMPOSITE_SPEC)))
_COMPOSITE_STATUS = struct(
    ("conditions", check_conditions),
    *(
        (field, NON_NEGATIVE_COUNT)
        for field in (*POD_COUNT_FIELDS, "pendingGroups", "scheduledGroups")
    ),
)
check_composite_pod_group_status: Check = struct(("status", _COMPOSITE_STATUS))


MAX_TEMPLATES = 8
#: Levels of a tree, including the level of PodGroups.
MAX_DEPTH = 4

POD_GROUP_TEMPLATES, COMPOSITE_POD_GROUP_TEMPLATES = (
    "podGroupTemplates",
    "compositePodGroupTemplates",
)


# --------------------------------------------------------------------------------- single templates


def _template_list(check: Check) -> Check:
    """Check a list of templates, none of which may be added or removed; absent means empty."""
    items = all_of(unique("name"), each_keyed("name", check))
    inner = if_changed(max_items(MAX_TEMPLATES, fixed_items("name", items)))

    def check_templates(new: Any, old: Any) -> Causes:
        return inner(new or [], CREATED if old is CREATED else old or [])

    return check_templates


_POD_GROUP_TEMPLATE_LIST = (
    POD_GROUP_TEMPLATES,
    _template_list(struct(("name", mandatory(LABEL)), *POD_GROUP_FIELDS)),
)
_COMPOSITE_TEMPLATE_FIELDS = (
    ("name", mandatory(LABEL)),
    *scheduling_fields(scheduling_policy("minGroupCount")),
    _POD_GROUP_TEMPLATE_LIST,
)


def _composite_template_list(levels: int) -> Check:
    """Check composite templates with so many levels below them; deeper ones are refused."""
    below = (
        ((COMPOSITE_POD_GROUP_TEMPLATES, _composite_template_list(levels - 1)),) if levels else ()
    )
    return _template_list(struct(*_COMPOSITE_TEMPLATE_FIELDS, *below))


_PATH_SEGMENT = mandatory(string_format(validate_path_segment))
_CONTROLLER_REFERENCE = struct(
    ("apiGroup", optional(SUBDOMAIN)), ("kind", _PATH_SEGMENT), ("name", _PATH_SEGMENT)
)

_WORKLOAD_SPEC = all_of(
    union(POD_GROUP_TEMPLATES, COMPOSITE_POD_GROUP_TEMPLATES),
    struct(
        ("controllerRef", immutable(if_present(_CONTROLLER_REFERENCE))),
        _POD_GROUP_TEMPLATE_LIST,
        (COMPOSITE_POD_GROUP_TEMPLATES, _composite_template_list(MAX_DEPTH - 2)),
    ),
)

# --------------------------------------------------------------------------------- the whole tree


class _TemplateList(NamedTuple):
    """A list of templates and its path in the tree."""

    path: str
    level: int
    templates: list[Object]


def _walk_template_lists(spec: Object) -> Iterator[_TemplateList]:
    """Yield every list of templates within the depth limit, parents first."""
    yield _TemplateList(POD_GROUP_TEMPLATES, 1, spec.get(POD_GROUP_TEMPLATES, []))
    todo = [
        _TemplateList(COMPOSITE_POD_GROUP_TEMPLATES, 1, spec.get(COMPOSITE_POD_GROUP_TEMPLATES, []))
    ]
    while todo:
        composites = todo.pop(0)
        yield composites
        for at, one in enumerate(composites.templates):
            path, level = f"{composites.path}[{at}]", composites.level + 1
            yield _TemplateList(
                f"{path}.{POD_GROUP_TEMPLATES}", level, one.get(POD_GROUP_TEMPLATES, [])
            )
            if level < MAX_DEPTH:
                todo.append(
                    _TemplateList(
                        f"{path}.{COMPOSITE_POD_GROUP_TEMPLATES}",
                        level,
                        one.get(COMPOSITE_POD_GROUP_TEMPLATES, []),
                    )
                )


def _check_unique_names(new: Any, old: Any) -> Causes:
    """Refuse a name that occurs in two lists; duplicates within one list are checked there."""
    taken: set[str] = set()
    found: list[Cause] = []
    for path, _, templates in _walk_template_lists(new):
        names = [one.get("name", "") for one in templates]
        found += [
            duplicate(f"{path}[{at}].name", name)
            for at, name in enumerate(names)
            if name and name in taken
        ]
        taken.update(names)
    return found


def _check_depth(new: Any, old: Any) -> Causes:
    detail = f"maximum template hierarchy depth is {MAX_DEPTH}"
    return [
        invalid(f"{COMPOSITE_POD_GROUP_TEMPLATES}[{at}]", one.get("name", ""), detail)
        for at, one in enumerate(new.get(COMPOSITE_POD_GROUP_TEMPLATES, ()))
        if _height(one) > MAX_DEPTH - 1
    ]


def _height(composite: Object) -> int:
    """Return the number of composite levels from this template down."""
    levels, below = 0, [composite]
    while below:
        levels += 1
        below = [child for one in below for child in one.get(COMPOSITE_POD_GROUP_TEMPLATES, ())]
    return levels


def _check_children(new: Any, old: Any) -> Causes:
    detail = "must have at least one child PodGroupTemplate or CompositePodGroupTemplate"
    return [
        invalid(f"{path}[{at}]", one.get("name", ""), detail)
        for path, _, templates in _walk_template_lists(new)
        if path.endswith(COMPOSITE_POD_GROUP_TEMPLATES)
        for at, one in enumerate(templates)
        if not one.get(POD_GROUP_TEMPLATES) and not one.get(COMPOSITE_POD_GROUP_TEMPLATES)
    ]


def _check_equal_priorities(new: Any, old: Any) -> Causes:
    templates = [one for listed in _walk_template_lists(new) for one in listed.templates]
    priorities = {(one.get("priorityClassName", ""), one.get("priority")) for one in templates}
    if len(priorities) <= 1:
        return ()
    flat = "detected multiple priority configurations"
    tree = "all priority and priorityClassName values must be identical, detected multiple values"
    return [invalid("", None, tree if new.get(COMPOSITE_POD_GROUP_TEMPLATES) else flat)]


_TEMPLATE_TREE = all_of(_check_unique_names, _check_depth, _check_children, _check_equal_priorities)

check_workload: Check = struct(("spec", if_present(all_of(_TEMPLATE_TREE, _WORKLOAD_SPEC))))
