"""Rules of where a pod may go: tolerations, affinity, spreading, gates, its group."""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import (
    Causes,
    duplicate,
    forbidden,
    invalid,
    required,
    under,
    unsupported,
)
from phalanx.api.errors import Cause
from phalanx.api.fields import (
    dns_label_faults,
    dns_subdomain_faults,
    label_key_faults,
    label_value_faults,
)
from phalanx.api.rules.checks import (
    Check,
    again,
    each,
    every,
    given,
    one_of,
    present,
    repeated,
    struct,
    text,
)
from phalanx.api.rules.meta import LABEL_KEY, check_operator, check_selector
from phalanx.api.rules.node import check_effect

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

# --------------------------------------------------------------------------------- tolerations


def _toleration_value(new: Any, old: Any) -> Causes:
    operator, value = new.get("operator", ""), new.get("value", "")
    if operator in ("", "Equal"):
        faults = ";".join(label_value_faults(value))
        return [invalid("operator", value, faults)] if faults else ()
    if operator == "Exists":
        detail = "value must be empty when `operator` is 'Exists'"
        return [invalid("operator", value, detail)] if value else ()
    return [unsupported("operator", operator, ("Equal", "Exists"))]


def _toleration_scope(new: Any, old: Any) -> Causes:
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
    every(
        struct(("key", given(LABEL_KEY))),
        _toleration_scope,
        _toleration_value,
        struct(("effect", given(check_effect))),
    )
)

# ------------------------------------------------------------------------------- node affinity


def _node_operator(new: Any, old: Any) -> Causes:
    if new.get("operator") not in ("Gt", "Lt"):
        return check_operator(new, old)
    detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
    return () if len(new.get("values", ())) == 1 else [required("values", detail)]


def _node_field(new: Any, old: Any) -> Causes:
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
    return [*found, *under("values", each(text(dns_subdomain_faults))(values, None))]


_NODE_EXPRESSION = every(_node_operator, struct(("key", LABEL_KEY)))
_NODE_VALUES = struct(("values", given(each(text(label_value_faults)))))


def _term(expression: Check) -> Check:
    return struct(
        ("matchExpressions", given(each(expression))),
        ("matchFields", given(each(_node_field))),
    )


def _terms_are_there(new: Any, old: Any) -> Causes:
    if new.get("nodeSelectorTerms"):
        return ()
    return [required("nodeSelectorTerms", "must have at least one node selector term")]


def _weight(new: Any, old: Any) -> Causes:
    return () if 1 <= (new or 0) <= 100 else [invalid("", new or 0, "must be in the range 1-100")]


NODE_AFFINITY: Check = struct(
    (
        _REQUIRED,
        present(
            every(
                _terms_are_there,
                struct(
                    (
                        "nodeSelectorTerms",
                        given(each(_term(every(_NODE_EXPRESSION, _NODE_VALUES)))),
                    )
                ),
            )
        ),
    ),
    (
        _PREFERRED,
        given(each(struct(("weight", _weight), ("preference", _term(_NODE_EXPRESSION))))),
    ),
)

# -------------------------------------------------------------------------------- pod affinity


def _topology_key(new: Any, old: Any) -> Causes:
    empty = [] if new else [required("", "can not be empty")]
    return [*empty, *LABEL_KEY(new, old)]


def _namespaces(new: Any, old: Any) -> Causes:
    names = new.get("namespaces", ())
    return [invalid("namespace", name, fault) for name in names for fault in dns_label_faults(name)]


def _label_keys(new: Any, old: Any) -> Causes:
    """Keys need a selector to add to, and must not be in both lists."""
    found: list[Cause] = []
    for field in ("matchLabelKeys", "mismatchLabelKeys"):
        keys = new.get(field, ())
        if keys and new.get("labelSelector") is None:
            found.append(forbidden(field, "must not be specified when labelSelector is not set"))
        for at, key in enumerate(keys):
            found += [invalid(f"{field}[{at}]", key, fault) for fault in label_key_faults(key)]
    unmatched = set(new.get("mismatchLabelKeys", ()))
    for at, key in enumerate(new.get("matchLabelKeys", ())):
        if key in unmatched:
            detail = "exists in both matchLabelKeys and mismatchLabelKeys"
            found.append(invalid(f"matchLabelKeys[{at}]", key, detail))
    return found


_POD_TERM = every(
    struct(("labelSelector", given(check_selector)), ("namespaceSelector", given(check_selector))),
    _namespaces,
    _label_keys,
    struct(("topologyKey", _topology_key)),
)
_POD_AFFINITY = struct(
    (_REQUIRED, given(each(_POD_TERM))),
    (_PREFERRED, given(each(struct(("weight", _weight), ("podAffinityTerm", present(_POD_TERM)))))),
)

AFFINITY: Check = struct(
    ("nodeAffinity", present(NODE_AFFINITY)),
    ("podAffinity", present(_POD_AFFINITY)),
    ("podAntiAffinity", present(_POD_AFFINITY)),
)

# ---------------------------------------------------------------------------------- spreading


def _more_than_zero(new: Any, old: Any) -> Causes:
    return () if (new or 0) > 0 else [invalid("", new or 0, "must be greater than zero")]


def _key_is_there(new: Any, old: Any) -> Causes:
    return () if new else [required("", "can not be empty")]


def _min_domains(new: Any, old: Any) -> Causes:
    domains, action = new.get("minDomains"), new.get("whenUnsatisfiable", "")
    if domains is None:
        return ()
    found = under("minDomains", _more_than_zero(domains, old))
    if action != "DoNotSchedule":
        detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        found.append(invalid("minDomains", domains, detail))
    return found


def _each_spread_once(new: Any, old: Any) -> Causes:
    """Told at the earlier of two, where clients of the API expect it."""
    later = repeated(reversed(new), "topologyKey", "whenUnsatisfiable")
    found: list[Cause] = []
    for at in (len(new) - 1 - place for place in reversed(later)):
        pair = f"{{{new[at].get('topologyKey')}, {new[at].get('whenUnsatisfiable')}}}"
        found.append(duplicate(f"[{at}].{{topologyKey, whenUnsatisfiable}}", pair))
    return found


_INCLUSION = one_of("Honor", "Ignore")
SPREAD_CONSTRAINTS: Check = every(
    each(
        every(
            struct(
                ("maxSkew", _more_than_zero),
                ("topologyKey", _key_is_there),
                ("whenUnsatisfiable", one_of("DoNotSchedule", "ScheduleAnyway")),
            ),
            _min_domains,
            struct(
                ("nodeAffinityPolicy", given(_INCLUSION)),
                ("nodeTaintsPolicy", given(_INCLUSION)),
                ("labelSelector", given(check_selector)),
            ),
            _label_keys,
        )
    ),
    _each_spread_once,
)

# ------------------------------------------------------------------------------ gates and group


def check_gates(new: Any, old: Any) -> Causes:
    """Gates have qualified names, each once."""
    names = [gate.get("name", "") for gate in new]
    found = [
        invalid(f"[{at}]", name, fault)
        for at, name in enumerate(names)
        for fault in label_key_faults(name)
    ]
    return [*found, *(duplicate(f"[{at}]", names[at]) for at in again(names))]


def _group_name(new: Any, old: Any) -> Causes:
    if new is None:
        return [invalid("", "", "must specify one of: `podGroupName`")]
    return [invalid("", new, fault) for fault in dns_subdomain_faults(new)]


SCHEDULING_GROUP: Check = struct(("podGroupName", _group_name))
