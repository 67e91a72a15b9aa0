"""Checks what a user wrote in the building blocks, before it is read.

A key that is misspelt, a value of the wrong type, two spellings of one field, or `minCount` where a
group of groups has `minGroupCount`: each is a cause at the user's own field. A block with a fault
counts as absent, so that reading it never fails and never guesses.

>>> blocks = {"policy": {"gang": {"minCuont": 4}}}
>>> [str(cause) for cause in check_intent(blocks, "spec.scheduling", composite=False).causes]
['spec.scheduling.policy.gang.minCuont: Forbidden: unknown field; known: minCount']
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.api.errors import Cause, forbidden, invalid

#: The field of a template for each block, and the spellings of it in users' objects.
SPELLINGS = (
    ("schedulingPolicy", ("schedulingPolicy", "policy")),
    ("schedulingConstraints", ("schedulingConstraints", "constraints")),
    ("disruptionMode", ("disruptionMode", "disruption")),
    ("resourceClaims", ("resourceClaims",)),
)
#: The spellings of the label key of a topology constraint.
TOPOLOGY_KEYS = ("key", "level")
_COUNT_FIELDS = {False: "minCount", True: "minGroupCount"}
_CLAIM_FIELDS = ("name", "resourceClaimName", "resourceClaimTemplateName")


@dataclass(frozen=True, slots=True)
class CheckedIntent:
    """The blocks without faults, by the fields of a template; their spellings; the causes."""

    blocks: Mapping[str, Any]
    spellings: Mapping[str, str]
    causes: tuple[Cause, ...]


def check_intent(
    scheduling: Any, path: str, *, composite: bool, other_fields: Collection[str] = ()
) -> CheckedIntent:
    """Check a struct of building blocks; `other_fields` are fields of it that are no blocks."""
    if scheduling is None:
        return CheckedIntent({}, {}, ())
    if not isinstance(scheduling, Mapping):
        return CheckedIntent({}, {}, (_wrong_type(path, scheduling, "an object"),))
    blocks: dict[str, Any] = {}
    spellings: dict[str, str] = {}
    known = [spelling for _, names in SPELLINGS for spelling in names]
    if composite:
        known.remove("resourceClaims")
    causes = list(_unknown_keys(scheduling, path, [*known, *other_fields]))
    for name, names in SPELLINGS:
        given = [one for one in names if scheduling.get(one) is not None]
        if len(given) > 1:
            text = f"may not be set together with {given[0]}: both are the same field"
            causes.append(forbidden(f"{path}.{given[1]}", text))
        if not given or (composite and name == "resourceClaims"):
            continue
        block, place = scheduling[given[0]], f"{path}.{given[0]}"
        found = list(_CHECKS[name](block, place, composite))
        causes += found
        if not found and block:
            blocks[name], spellings[name] = block, given[0]
    return CheckedIntent(blocks, spellings, tuple(causes))


def _wrong_type(path: str, value: object, wanted: str) -> Cause:
    shown = value if isinstance(value, (str, int, float, bool)) else type(value).__name__
    return invalid(path, shown, f"must be {wanted}")


def _unknown_keys(block: Mapping[str, Any], path: str, known: Sequence[str]) -> Iterator[Cause]:
    for key in block:
        if key not in known:
            yield forbidden(f"{path}.{key}", f"unknown field; known: {', '.join(known)}")


def _check_policy(block: Any, path: str, composite: bool) -> Iterator[Cause]:
    if not isinstance(block, Mapping):
        yield _wrong_type(path, block, "an object")
        return
    for member in block:
        # Other members may come with later versions: what a controller supports decides.
        inner, place = block[member], f"{path}.{member}"
        if inner is not None and not isinstance(inner, Mapping):
            yield _wrong_type(place, inner, "an object")
        elif member == "gang":
            yield from _check_gang(inner or {}, place, composite)


def _check_gang(block: Mapping[str, Any], path: str, composite: bool) -> Iterator[Cause]:
    field, other = _COUNT_FIELDS[composite], _COUNT_FIELDS[not composite]
    if other in block:
        noun = "groups" if composite else "pods"
        yield forbidden(f"{path}.{other}", f"a group of {noun} has {field}")
    yield from _unknown_keys({k: 0 for k in block if k != other}, path, [field])
    count = block.get(field)
    if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
        yield _wrong_type(f"{path}.{field}", count, "an integer")


def _check_constraints(block: Any, path: str, composite: bool) -> Iterator[Cause]:
    if not isinstance(block, Mapping):
        yield _wrong_type(path, block, "an object")
        return
    yield from _unknown_keys(block, path, ["topology"])
    topology = block.get("topology") or []
    if not isinstance(topology, Sequence) or isinstance(topology, str):
        yield _wrong_type(f"{path}.topology", topology, "a list")
        return
    for index, one in enumerate(topology):
        place = f"{path}.topology[{index}]"
        if not isinstance(one, Mapping):
            yield _wrong_type(place, one, "an object")
            continue
        yield from _unknown_keys(one, place, list(TOPOLOGY_KEYS))
        for key in TOPOLOGY_KEYS:
            if one.get(key) is not None and not isinstance(one[key], str):
                yield _wrong_type(f"{place}.{key}", one[key], "a string")
        if all(one.get(key) for key in TOPOLOGY_KEYS):
            yield forbidden(f"{place}.level", "may not be set together with key")


def _check_mode(block: Any, path: str, composite: bool) -> Iterator[Cause]:
    if not isinstance(block, Mapping):
        yield _wrong_type(path, block, "an object")
        return
    for member, inner in block.items():
        if inner is not None and not isinstance(inner, Mapping):
            yield _wrong_type(f"{path}.{member}", inner, "an object")


def _check_claims(block: Any, path: str, composite: bool) -> Iterator[Cause]:
    if not isinstance(block, Sequence) or isinstance(block, str):
        yield _wrong_type(path, block, "a list")
        return
    for index, one in enumerate(block):
        place = f"{path}[{index}]"
        if not isinstance(one, Mapping):
            yield _wrong_type(place, one, "an object")
            continue
        yield from _unknown_keys(one, place, list(_CLAIM_FIELDS))
        for name in _CLAIM_FIELDS:
            if one.get(name) is not None and not isinstance(one[name], str):
                yield _wrong_type(f"{place}.{name}", one[name], "a string")


_CHECKS: Mapping[str, Callable[[Any, str, bool], Iterator[Cause]]] = {
    "schedulingPolicy": _check_policy,
    "schedulingConstraints": _check_constraints,
    "disruptionMode": _check_mode,
    "resourceClaims": _check_claims,
}
