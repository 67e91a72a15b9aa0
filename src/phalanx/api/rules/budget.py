"""Rules of PodDisruptionBudgets: how many pods must stay, or may go, at a time."""

from __future__ import annotations

import re
from typing import Any

from phalanx.api.causes import Causes, invalid
from phalanx.api.rules.checks import Check, at_least, every, given, one_of, present, struct
from phalanx.api.rules.meta import check_conditions, check_selector

_PERCENT = re.compile(r"[0-9]+%").fullmatch
_PERCENT_FAULT = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or "
    "'93%', regex used for validation is '[0-9]+%')"
)
_NATURAL = given(at_least(0))


def check_share(new: Any, old: Any) -> Causes:
    """A number of pods, or a part of them all in per cent."""
    if isinstance(new, int):
        return at_least(0)(new, old)
    if not _PERCENT(new):
        return [invalid("", new, _PERCENT_FAULT)]
    # More than three digits are more than a hundred, however long they are.
    percent = new[:-1].lstrip("0")
    above = len(percent) > 3 or int(percent or 0) > 100
    return [invalid("", new, "must not be greater than 100%")] if above else ()


def _one_number(new: Any, old: Any) -> Causes:
    if "minAvailable" not in new or "maxUnavailable" not in new:
        return ()
    return [invalid("", new, "minAvailable and maxUnavailable cannot be both set")]


_SPEC = every(
    _one_number,
    struct(
        ("minAvailable", present(check_share)),
        ("maxUnavailable", present(check_share)),
        ("selector", given(check_selector)),
        ("unhealthyPodEvictionPolicy", given(one_of("AlwaysAllow", "IfHealthyBudget"))),
    ),
)

_STATUS = struct(
    ("conditions", check_conditions),
    ("disruptionsAllowed", _NATURAL),
    ("currentHealthy", _NATURAL),
    ("desiredHealthy", _NATURAL),
    ("expectedPods", _NATURAL),
)

BUDGET: Check = struct(("spec", present(_SPEC)))
BUDGET_STATUS: Check = struct(("status", present(_STATUS)))
