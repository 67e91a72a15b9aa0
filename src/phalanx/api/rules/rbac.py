"""Rules of roles, and of the bindings that give them to somebody."""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, invalid, required, unsupported
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_subdomain_faults, path_segment_faults
from phalanx.api.kinds import RBAC
from phalanx.api.rules.checks import (
    CREATED,
    Check,
    each,
    every,
    given,
    needed,
    one_of,
    struct,
    text,
)
from phalanx.api.rules.meta import check_selector

_SUBJECTS = ("ServiceAccount", "User", "Group")

# ---------------------------------------------------------------------------------------- roles


def _policy_rule(new: Any, old: Any) -> Causes:
    """Verbs on resources, or on paths that are none, never both."""
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


def _no_paths(new: Any, old: Any) -> Causes:
    if not new.get("nonResourceURLs"):
        return ()
    detail = "namespaced rules cannot apply to non-resource URLs"
    return [invalid("nonResourceURLs", new["nonResourceURLs"], detail)]


def _has_selectors(new: Any, old: Any) -> Causes:
    if new is None or new.get("clusterRoleSelectors"):
        return ()
    detail = "at least one clusterRoleSelector required if aggregationRule is non-nil"
    return [required("clusterRoleSelectors", detail)]


ROLE: Check = struct(("rules", given(each(every(_policy_rule, _no_paths)))))
CLUSTER_ROLE: Check = struct(
    ("rules", given(each(_policy_rule))),
    (
        "aggregationRule",
        every(_has_selectors, struct(("clusterRoleSelectors", given(each(check_selector))))),
    ),
)

# ------------------------------------------------------------------------------------- bindings


def _subject(new: Any, old: Any) -> Causes:
    """Accounts are objects of the cluster; users and groups are only names."""
    kind, name, group = (new.get(field, "") for field in ("kind", "name", "apiGroup"))
    found = [] if name else [required("name")]
    if kind not in _SUBJECTS:
        return [*found, unsupported("kind", kind, _SUBJECTS)]
    wanted = "" if kind == "ServiceAccount" else RBAC
    if kind == "ServiceAccount" and name:
        found += [invalid("name", name, fault) for fault in dns_subdomain_faults(name)]
    return found if group == wanted else [*found, unsupported("apiGroup", group, (wanted,))]


def _has_place(new: Any, old: Any) -> Causes:
    """Outside of any namespace an account must say which one is its."""
    if new.get("kind") != "ServiceAccount" or new.get("namespace"):
        return ()
    return [required("namespace")]


def _reference_stays(new: Any, old: Any) -> Causes:
    if old is CREATED or new.get("roleRef") == old.get("roleRef"):
        return ()
    return [invalid("roleRef", new.get("roleRef"), "cannot change roleRef")]


def _binding(subject: Check, *kinds: str) -> Check:
    return every(
        struct(
            (
                "roleRef",
                struct(
                    ("apiGroup", one_of(RBAC)),
                    ("kind", one_of(*kinds)),
                    ("name", needed(text(path_segment_faults))),
                ),
            ),
            ("subjects", given(each(subject))),
        ),
        _reference_stays,
    )


ROLE_BINDING: Check = _binding(_subject, "Role", "ClusterRole")
CLUSTER_ROLE_BINDING: Check = _binding(every(_subject, _has_place), "ClusterRole")
