"""Label selectors as objects hold them, `matchLabels` and `matchExpressions`, and what they select.

The written form, `a=b,c in (d,e)`, is read by `selectors.py`; both become the same requirements.
Whether such an object is well formed is a matter of rules (`metarules.check_selector`).
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.api.selectors import BadSelector, Requirement
from phalanx.api.wire import Object

_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Whether labels are selected: an empty selector selects everything, an absent one nothing."""
    if selector is None:
        return False
    return all(need.matches(labels) for need in requirements(selector))


def requirements(selector: Object) -> tuple[Requirement, ...]:
    """What a selector requires. Raises BadSelector where it has an operator that there is not."""
    equal = [
        Requirement(key, "in", frozenset({value}))
        for key, value in selector.get("matchLabels", {}).items()
    ]
    return (*equal, *map(_requirement, selector.get("matchExpressions", ())))


def written(selector: Object) -> str:
    """A selector as people write it: `a=b,c in (d,e),!f`."""
    equal = [f"{key}={value}" for key, value in sorted(selector.get("matchLabels", {}).items())]
    return ",".join([*equal, *map(_written, selector.get("matchExpressions", ()))])


def _written(expression: Object) -> str:
    key, operator = expression.get("key", ""), expression.get("operator", "")
    if operator == "Exists":
        return str(key)
    if operator == "DoesNotExist":
        return f"!{key}"
    return f"{key} {operator.lower()} ({','.join(sorted(expression.get('values', ())))})"


def _requirement(expression: Object) -> Requirement:
    operator = expression.get("operator", "")
    if operator not in _OPERATORS:
        raise BadSelector(f'"{operator}" is not a valid label selector operator')
    values = frozenset(expression.get("values", ()))
    return Requirement(expression.get("key", ""), _OPERATORS[operator], values)
