"""Validation of PodDisruptionBudgets, roles and role bindings."""

from __future__ import annotations

import re
from typing import Any

from phalanx.api.errors import Cause, Causes, invalid, required, unsupported
from phalanx.api.formats import validate_dns_subdomain, validate_path_segment
from phalanx.api.kinds import RBAC_GROUP
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    all_of,
    each,
    if_present,
    mandatory,
    minimum,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.metadata import check_conditions, check_selector

_is_percent = re.compile(r"[0-9]+%").fullmatch
_PERCENT_FAULT = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or "
    "'93%', regex used for validation is '[0-9]+%')"
)
_NON_NEGATIVE = optional(minimum(0))


def check_int_or_percent(new: Any, old: Any) -> Causes:
    """Require a number from 0 on, or a percentage up to 100 %."""
    if isinstance(new, int):
        return minimum(0)(new, old)
    if not _is_percent(new):
        return [invalid("", new, _PERCENT_FAULT)]
    # More than three digits exceed 100 %, whatever their number.
    percent = new[:-1].lstrip("0")
    above = len(percent) > 3 or int(percent or 0) > 100
    return [invalid("", new, "must not be greater than 100%")] if above else ()


def _check_one_limit(new: Any, old: Any) -> Causes:
    if "minAvailable" not in new or "maxUnavailable" not in new:
        return ()
    return [invalid("", new, "minAvailable and maxUnavailable cannot be both set")]


_BUDGET_SPEC = all_of(
    _check_one_limit,
    struct(
        ("minAvailable", if_present(check_int_or_percent)),
        ("maxUnavailable", if_present(check_int_or_percent)),
        ("selector", optional(check_selector)),
        ("unhealthyPodEvictionPolicy", if_present(one_of("AlwaysAllow", "IfHealthyBudget"))),
    ),
)

_BUDGET_STATUS_FIELDS = struct(
    ("conditions", check_conditions),
    ("disruptionsAllowed", _NON_NEGATIVE),
    ("currentHealthy", _NON_NEGATIVE),
    ("desiredHealthy", _NON_NEGATIVE),
    ("expectedPods", _NON_NEGATIVE),
)

check_disruption_budget: Check = struct(("spec", if_present(_BUDGET_SPEC)))
check_disruption_budget_status: Check = struct(("status", if_present(_BUDGET_STATUS_FIELDS)))


_SUBJECT_KINDS = ("ServiceAccount", "User", "Group")

# ---------------------------------------------------------------------------------------- roles


def _check_policy_rule(new: Any, old: Any) -> Causes:
    """Require verbs on resources or on non-resource URLs, not on both."""
    found: list[Cause] = []
    if not new.get("verbs"):
        found.append(required("verbs", "verbs must contain at least one value"))
    if new.get("nonResourceURLs"):
        mixed = any(new.get(field) for field in ("apiGroups", "resources", "resourceNames"))
        detail = "rules cannot apply to both regular resources and non-resource URLs"
        both = [invalid("nonResourceURLs", new["nonResourceURLs"], detail)] if mixed else []
        return [*found, *both]
    if not new.get("apiGroups"):
        detail = "resource rules must supply at least one api group"
        found.append(required("apiGroups", detail))
    if not new.get("resources"):
        found.append(required("resources", "resource rules must supply at least one resource"))
    return found


def _check_no_non_resource_urls(new: Any, old: Any) -> Causes:
    if not new.get("nonResourceURLs"):
        return ()
    detail = "namespaced rules cannot apply to non-resource URLs"
    return [invalid("nonResourceURLs", new["nonResourceURLs"], detail)]


def _check_has_selectors(new: Any, old: Any) -> Causes:
    if new is None or new.get("clusterRoleSelectors"):
        return ()
    detail = "at least one clusterRoleSelector required if aggregationRule is non-nil"
    return [required("clusterRoleSelectors", detail)]


def _check_role_selector(new: Any, old: Any) -> Causes:
    """Check a selector; Kubernetes reports an unusable one as a whole, too."""
    found = check_selector(new, old)
    return [*found, invalid("", new, "the selector cannot be used")] if found else ()


check_role: Check = struct(
    ("rules", optional(each(all_of(_check_policy_rule, _check_no_non_resource_urls))))
)
check_cluster_role: Check = struct(
    ("rules", optional(each(_check_policy_rule))),
    (
        "aggregationRule",
        all_of(
            _check_has_selectors,
            struct(("clusterRoleSelectors", optional(each(_check_role_selector)))),
        ),
    ),
)

# ------------------------------------------------------------------------------------- bindings


def _check_subject(new: Any, old: Any) -> Causes:
    """Check the name, the kind and the API group of a subject."""
    kind, name, group = (new.get(field, "") for field in ("kind", "name", "apiGroup"))
    found = [] if name else [required("name")]
    if kind not in _SUBJECT_KINDS:
        return [*found, unsupported("kind", kind, _SUBJECT_KINDS)]
    wanted = "" if kind == "ServiceAccount" else RBAC_GROUP
    if kind == "ServiceAccount" and name:
        found += [invalid("name", name, fault) for fault in validate_dns_subdomain(name)]
    return found if group == wanted else [*found, unsupported("apiGroup", group, (wanted,))]


def _check_subject_namespace(new: Any, old: Any) -> Causes:
    """Require a namespace for ServiceAccounts in a ClusterRoleBinding."""
    if new.get("kind") != "ServiceAccount" or new.get("namespace"):
        return ()
    return [required("namespace")]


def _check_role_ref_immutable(new: Any, old: Any) -> Causes:
    if old is CREATED or new.get("roleRef") == old.get("roleRef"):
        return ()
    return [invalid("roleRef", new.get("roleRef"), "cannot change roleRef")]


def _binding_check(subject: Check, *kinds: str) -> Check:
    return all_of(
        struct(
            (
                "roleRef",
                struct(
                    ("apiGroup", one_of(RBAC_GROUP)),
                    ("kind", one_of(*kinds)),
                    ("name", mandatory(string_format(validate_path_segment))),
                ),
            ),
            ("subjects", optional(each(subject))),
        ),
        _check_role_ref_immutable,
    )


check_role_binding: Check = _binding_check(_check_subject, "Role", "ClusterRole")
check_cluster_role_binding: Check = _binding_check(
    all_of(_check_subject, _check_subject_namespace), "ClusterRole"
)
