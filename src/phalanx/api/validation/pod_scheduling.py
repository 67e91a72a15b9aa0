"""Validation of scheduling fields: tolerations, affinity, topology spread, gates, group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    prefix_causes,
    required,
    too_many,
    unsupported,
)
from phalanx.api.formats import (
    validate_dns_label,
    validate_dns_subdomain,
    validate_label_key,
    validate_label_value,
)
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    all_of,
    each,
    find_duplicate_items,
    find_duplicate_values,
    if_present,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.core_kinds import check_taint_effect
from phalanx.api.validation.metadata import LABEL_KEY, check_operator_values, check_selector

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

# --------------------------------------------------------------------------------- tolerations


def _check_toleration_value(new: Any, old: Any) -> Causes:
    operator, value = new.get("operator", ""), new.get("value", "")
    if operator in ("", "Equal"):
        faults = ";".join(validate_label_value(value))
        return [invalid("operator", value, faults)] if faults else ()
    if operator == "Exists":
        detail = "value must be empty when `operator` is 'Exists'"
        return [invalid("operator", value, detail)] if value else ()
    return [unsupported("operator", operator, ("Equal", "Exists"))]


def _check_toleration_scope(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    if not new.get("key") and new.get("operator") != "Exists":
        detail = (
            "operator must be Exists when `key` is empty, "
            'which means "match all values and all keys"'
        )
        found.append(invalid("operator", new.get("operator", ""), detail))
    if new.get("tolerationSeconds") is not None and new.get("effect") != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        found.append(invalid("effect", new.get("effect", ""), detail))
    return found


TOLERATIONS: Check = each(
    all_of(
        struct(("key", optional(LABEL_KEY))),
        _check_toleration_scope,
        _check_toleration_value,
        struct(("effect", optional(check_taint_effect))),
    )
)

# ------------------------------------------------------------------------------- node affinity


def _check_node_operator(new: Any, old: Any) -> Causes:
    if new.get("operator") not in ("Gt", "Lt"):
        return check_operator_values(new, old)
    detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
    return () if len(new.get("values", ())) == 1 else [required("values", detail)]


def _check_node_field(new: Any, old: Any) -> Causes:
    operator, values = new.get("operator"), new.get("values", ())
    found: list[Cause] = []
    if operator not in ("In", "NotIn"):
        found.append(invalid("operator", operator, "not a valid selector operator"))
    elif len(values) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        found.append(required("values", detail))
    if new.get("key") != "metadata.name":
        found.append(invalid("key", new.get("key"), "not a valid field selector key"))
        return found
    return [
        *found,
        *prefix_causes("values", each(string_format(validate_dns_subdomain))(values, None)),
    ]


_NODE_EXPRESSION = all_of(_check_node_operator, struct(("key", LABEL_KEY)))
_NODE_VALUES = struct(("values", optional(each(string_format(validate_label_value)))))


def _node_selector_term(expression: Check) -> Check:
    return struct(
        ("matchExpressions", optional(each(expression))),
        ("matchFields", optional(each(_check_node_field))),
    )


def _check_has_terms(new: Any, old: Any) -> Causes:
    if new.get("nodeSelectorTerms"):
        return ()
    return [required("nodeSelectorTerms", "must have at least one node selector term")]


def _check_weight(new: Any, old: Any) -> Causes:
    return () if 1 <= (new or 0) <= 100 else [invalid("", new or 0, "must be in the range 1-100")]


#: A node selector: terms of which one must match.
NODE_SELECTOR: Check = all_of(
    _check_has_terms,
    struct(
        (
            "nodeSelectorTerms",
            optional(each(_node_selector_term(all_of(_NODE_EXPRESSION, _NODE_VALUES)))),
        )
    ),
)

NODE_AFFINITY: Check = struct(
    (_REQUIRED, if_present(NODE_SELECTOR)),
    (
        _PREFERRED,
        optional(
            each(
                struct(
                    ("weight", _check_weight), ("preference", _node_selector_term(_NODE_EXPRESSION))
                )
            )
        ),
    ),
)

# -------------------------------------------------------------------------------- pod affinity


def _check_topology_key(new: Any, old: Any) -> Causes:
    empty = [] if new else [required("", "can not be empty")]
    return [*empty, *LABEL_KEY(new, old)]


def _check_namespaces(new: Any, old: Any) -> Causes:
    names = new.get("namespaces", ())
    return [
        invalid("namespace", name, fault) for name in names for fault in validate_dns_label(name)
    ]


def _check_label_keys(new: Any, old: Any) -> Causes:
    """Require a selector for label keys, and that no key is in both lists."""
    found: list[Cause] = []
    for field in ("matchLabelKeys", "mismatchLabelKeys"):
        keys = new.get(field, ())
        if keys and new.get("labelSelector") is None:
            found.append(forbidden(field, "must not be specified when labelSelector is not set"))
        for at, key in enumerate(keys):
            found += [invalid(f"{field}[{at}]", key, fault) for fault in validate_label_key(key)]
    unmatched = set(new.get("mismatchLabelKeys", ()))
    for at, key in enumerate(new.get("matchLabelKeys", ())):
        if key in unmatched:
            detail = "exists in both matchLabelKeys and mismatchLabelKeys"
            found.append(invalid(f"matchLabelKeys[{at}]", key, detail))
    return found


_POD_AFFINITY_TERM = all_of(
    struct(
        ("labelSelector", optional(check_selector)), ("namespaceSelector", optional(check_selector))
    ),
    _check_namespaces,
    _check_label_keys,
    struct(("topologyKey", _check_topology_key)),
)
_POD_AFFINITY = struct(
    (_REQUIRED, optional(each(_POD_AFFINITY_TERM))),
    (
        _PREFERRED,
        optional(
            each(
                struct(
                    ("weight", _check_weight), ("podAffinityTerm", if_present(_POD_AFFINITY_TERM))
                )
            )
        ),
    ),
)

AFFINITY: Check = struct(
    ("nodeAffinity", if_present(NODE_AFFINITY)),
    ("podAffinity", if_present(_POD_AFFINITY)),
    ("podAntiAffinity", if_present(_POD_AFFINITY)),
)

# --------------------------------------------------------------------------------- topology spread


def _check_positive(new: Any, old: Any) -> Causes:
    return () if (new or 0) > 0 else [invalid("", new or 0, "must be greater than zero")]


def _check_has_topology_key(new: Any, old: Any) -> Causes:
    return () if new else [required("", "can not be empty")]


def _check_min_domains(new: Any, old: Any) -> Causes:
    domains, action = new.get("minDomains"), new.get("whenUnsatisfiable", "")
    if domains is None:
        return ()
    found = prefix_causes("minDomains", _check_positive(domains, old))
    if action != "DoNotSchedule":
        detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        found.append(invalid("minDomains", domains, detail))
    return found


def _check_unique_constraints(new: Any, old: Any) -> Causes:
    """Require unique constraints; Kubernetes reports the cause at the earlier one."""
    later = find_duplicate_items(reversed(new), "topologyKey", "whenUnsatisfiable")
    found: list[Cause] = []
    for at in (len(new) - 1 - place for place in reversed(later)):
        pair = f"{{{new[at].get('topologyKey')}, {new[at].get('whenUnsatisfiable')}}}"
        found.append(duplicate(f"[{at}].{{topologyKey, whenUnsatisfiable}}", pair))
    return found


_INCLUSION_POLICY = one_of("Honor", "Ignore")
SPREAD_CONSTRAINTS: Check = all_of(
    each(
        all_of(
            struct(
                ("maxSkew", _check_positive),
                ("topologyKey", _check_has_topology_key),
                ("whenUnsatisfiable", one_of("DoNotSchedule", "ScheduleAnyway")),
            ),
            _check_min_domains,
            struct(
                ("nodeAffinityPolicy", if_present(_INCLUSION_POLICY)),
                ("nodeTaintsPolicy", if_present(_INCLUSION_POLICY)),
                ("labelSelector", optional(check_selector)),
            ),
            _check_label_keys,
        )
    ),
    _check_unique_constraints,
)

# ---------------------------------------------------------------------------- number of constraints

#: The terms of pod affinity and anti-affinity and the spread constraints of one pod: for each, the
#: scheduler counts pods in the whole cluster. And its requirements on nodes: for each, it compares
#: all nodes.
MAX_PEER_TERMS, MAX_NODE_REQUIREMENTS = 200, 1000


def check_constraint_counts(new: Any, old: Any) -> Causes:
    """Limit the constraints of a pod spec that the scheduler evaluates one by one."""
    affinity, spreads = new.get("affinity") or {}, new.get("topologySpreadConstraints") or ()
    before = {} if old is CREATED else old or {}
    fields = ("affinity", "topologySpreadConstraints", "nodeSelector")
    if before and all(new.get(field) == before.get(field) for field in fields):
        return ()
    found: list[Cause] = []
    terms = sum(
        len((affinity.get(side) or {}).get(strength) or ())
        for side in ("podAffinity", "podAntiAffinity")
        for strength in (_REQUIRED, _PREFERRED)
    )
    if terms > MAX_PEER_TERMS:
        found.append(too_many("affinity", terms, MAX_PEER_TERMS))
    elif terms + len(spreads) > MAX_PEER_TERMS:
        found.append(too_many("topologySpreadConstraints", len(spreads), MAX_PEER_TERMS - terms))
    if len(new.get("nodeSelector") or ()) > MAX_NODE_REQUIREMENTS:
        found.append(too_many("nodeSelector", len(new["nodeSelector"]), MAX_NODE_REQUIREMENTS))
    requirements = _count_node_requirements(affinity.get("nodeAffinity") or {})
    if requirements > MAX_NODE_REQUIREMENTS:
        found.append(too_many("affinity.nodeAffinity", requirements, MAX_NODE_REQUIREMENTS))
    return found


def _count_node_requirements(affinity: Mapping[str, Any]) -> int:
    """Count the requirements of all terms; a term without requirements counts as one."""
    terms = list((affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ())
    terms += [term.get("preference") or {} for term in affinity.get(_PREFERRED) or ()]
    return sum(
        max(len(term.get("matchExpressions") or ()) + len(term.get("matchFields") or ()), 1)
        for term in terms
    )


# ------------------------------------------------------------------------------ gates and group


def check_scheduling_gates(new: Any, old: Any) -> Causes:
    """Require unique qualified names of gates."""
    names = [gate.get("name", "") for gate in new]
    found = [
        invalid(f"[{at}]", name, fault)
        for at, name in enumerate(names)
        for fault in validate_label_key(name)
    ]
    return [*found, *(duplicate(f"[{at}]", names[at]) for at in find_duplicate_values(names))]


def _check_group_name(new: Any, old: Any) -> Causes:
    if new is None:
        return [invalid("", "", "must specify one of: `podGroupName`")]
    return [invalid("", new, fault) for fault in validate_dns_subdomain(new)]


SCHEDULING_GROUP: Check = struct(("podGroupName", _check_group_name))
