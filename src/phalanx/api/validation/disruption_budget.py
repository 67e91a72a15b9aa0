"""Validation of PodDisruptionBudgets: how many pods must stay or may be unavailable."""

from __future__ import annotations

import re
from typing import Any

from phalanx.api.field_errors import Causes, invalid
from phalanx.api.validation.checks import (
    Check,
    all_of,
    if_present,
    minimum,
    one_of,
    optional,
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
    """Require a number of pods or a percentage."""
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
        ("unhealthyPodEvictionPolicy", optional(one_of("AlwaysAllow", "IfHealthyBudget"))),
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
