"""Combinators for validation: small checks and ways to combine them.

A check takes the new and the old value and returns causes with paths relative to the value. On
create the old value is CREATED, which distinguishes an absent old value from a new object. Paths
are built only for failures.

    struct(
        ("minCount", mandatory(minimum(1))),
        ("topology", optional(max_items(1, each(TOPOLOGY)))),
        ("workloadRef", immutable(optional(REFERENCE))),
    )

Checks never change the values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Any, Final

import orjson

from phalanx.api.errors import (
    MAX_CAUSES,
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
from phalanx.api.formats import StringValidator
from phalanx.api.wire import CACHE_SIZE, MAX_CACHED_BYTES, compact_json


class _Created:
    """Stands for the old value on create."""


CREATED: Final = _Created()

Check = Callable[[Any, Any], Causes]
IMMUTABLE = "field is immutable"


def struct(*rows: tuple[str, Check]) -> Check:
    """Check each field by its own check.

    Most fields are absent and most checks accept absence. So only present, previously present and
    mandatory fields are checked. Causes are in the order of the rows.
    """
    optional = {name: inner for name, inner in rows if not _rejects_absence(inner)}
    needed_rows = tuple((name, inner) for name, inner in rows if name not in optional)
    assert len({name for name, _ in rows}) == len(rows), "one row per field"

    def check(new: Any, old: Any) -> Causes:
        fields, before = new or {}, old or {}
        is_new = old is CREATED
        failed: dict[str, Causes] = {}
        for name, needed_check in needed_rows:
            if causes := needed_check(fields.get(name), CREATED if is_new else before.get(name)):
                failed[name] = causes
        present = fields if is_new else {**before, **fields}
        for name in optional.keys() & present.keys():
            was = CREATED if is_new else before.get(name)
            if causes := optional[name](fields.get(name), was):
                failed[name] = causes
        if not failed:
            return ()
        return [
            cause
            for name, _ in rows
            if name in failed
            for cause in prefix_causes(name, failed[name])
        ]

    return check


def _rejects_absence(check: Check) -> bool:
    """Whether a check refuses an absent value."""
    return bool(check(None, CREATED) or check(None, None))


def all_of(*checks: Check) -> Check:
    """Combine several checks of one value."""

    def check(new: Any, old: Any) -> Causes:
        found: Causes = ()
        for inner in checks:
            if causes := inner(new, old):
                found = [*found, *causes]
        return found

    return check


def cached(check: Check) -> Check:
    """Cache a check of a whole part of an object by the part's JSON.

    Members of a gang are created with the same spec, and an unchanged part needs no second check.
    """

    @lru_cache(maxsize=CACHE_SIZE)
    def created(text: bytes) -> Causes:
        return tuple(check(orjson.loads(text), CREATED))

    def check_once(new: Any, old: Any) -> Causes:
        if old is not CREATED:
            return () if new == old else check(new, old)
        text = compact_json(new)
        return created(text) if len(text) <= MAX_CACHED_BYTES else check(new, old)

    return check_once


def non_empty(new: Any, old: Any) -> Causes:
    """Require that a value is present and neither empty nor zero."""
    return () if new else [required("")]


def mandatory(check: Check) -> Check:
    """Check a value and require that it is present and neither empty nor zero."""

    def check_needed(new: Any, old: Any) -> Causes:
        return check(new, old) if new else [required("")]

    return check_needed


def optional(check: Check) -> Check:
    """Check a value unless it is absent or empty; zero is checked."""

    def check_given(new: Any, old: Any) -> Causes:
        return check(new, old) if new or new == 0 else ()

    return check_given


def if_present(check: Check) -> Check:
    """Check a value unless it is absent; an empty value is checked."""

    def check_present(new: Any, old: Any) -> Causes:
        return () if new is None else check(new, old)

    return check_present


def each(check: Check) -> Check:
    """Check every item of a list, on updates too as if it were new."""

    def check_each(new: Any, old: Any) -> Causes:
        found: list[Cause] = []
        for at, item in enumerate(new):
            if causes := check(item, CREATED):
                found += prefix_causes(f"[{at}]", causes)
                if len(found) >= MAX_CAUSES:
                    break
        return found

    return check_each


def each_keyed(key: str, check: Check) -> Check:
    """Check every item against the old item of the same key; unchanged items are skipped."""

    def check_each(new: Any, old: Any) -> Causes:
        before = {} if old is CREATED else {item.get(key): item for item in old}
        found: list[Cause] = []
        for at, item in enumerate(new):
            was = before.get(item.get(key), CREATED)
            if item != was and (causes := check(item, was)):
                found += prefix_causes(f"[{at}]", causes)
                if len(found) >= MAX_CAUSES:
                    break
        return found

    return check_each


def fixed_items(key: str, check: Check) -> Check:
    """Refuse added and removed items after creation; then report nothing else."""

    def check_items(new: Any, old: Any) -> Causes:
        if old is CREATED:
            return check(new, old)
        now = dict.fromkeys(item.get(key) for item in new)
        before = dict.fromkeys(item.get(key) for item in old)
        added = [at for at, item in enumerate(new) if item.get(key) not in before]
        found = [forbidden(f"[{at}]", "item may not be added") for at in added]
        if any(name not in now for name in before):
            found.append(forbidden("", "item may not be removed"))
        return found or check(new, old)

    return check_items


def immutable(check: Check) -> Check:
    """Check a value on create; refuse every change afterwards."""

    def check_frozen(new: Any, old: Any) -> Causes:
        if old is CREATED:
            return check(new, old)
        return () if new == old else [invalid("", None, IMMUTABLE)]

    return check_frozen


def if_changed(check: Check) -> Check:
    """Check a value only if it is new or changed."""

    def check_changed(new: Any, old: Any) -> Causes:
        return () if old is not CREATED and new == old else check(new, old)

    return check_changed


def on_create(check: Check) -> Check:
    """Check a value only on create."""

    def check_created(new: Any, old: Any) -> Causes:
        return check(new, old) if old is CREATED else ()

    return check_created


def string_format(faults: StringValidator) -> Check:
    """Check the format of a string; an absent string is empty."""

    def check(new: Any, old: Any) -> Causes:
        found = faults(new or "")
        return [invalid("", new or "", fault) for fault in found] if found else ()

    return check


def one_of(*supported: str) -> Check:
    """Require one of the supported values; messages list them in this order."""

    def check(new: Any, old: Any) -> Causes:
        return () if new in supported else [unsupported("", new, supported)]

    return check


def minimum(low: int) -> Check:
    """Require a number not below a minimum."""

    def check(new: Any, old: Any) -> Causes:
        return () if new >= low else [invalid("", new, f"must be greater than or equal to {low}")]

    return check


def maximum(high: int) -> Check:
    """Require a number not above a maximum."""

    def check(new: Any, old: Any) -> Causes:
        return () if new <= high else [invalid("", new, f"must be less than or equal to {high}")]

    return check


def in_range(low: int, high: int) -> Check:
    """Require a number within a range."""

    def check(new: Any, old: Any) -> Causes:
        if low <= new <= high:
            return ()
        return [invalid("", new, f"must be between {low} and {high}, inclusive")]

    return check


def max_items(limit: int, check: Check) -> Check:
    """Require at most so many items; a longer list is not checked further."""

    def check_count(new: Any, old: Any) -> Causes:
        return [too_many("", len(new), limit)] if len(new) > limit else check(new, old)

    return check_count


def unique(*keys: str) -> Check:
    """Require that items differ in at least one of these fields; the cause is at the item."""

    def check(new: Any, old: Any) -> Causes:
        return [duplicate(f"[{at}]", new[at]) for at in find_duplicate_items(new, *keys)]

    return check


def unique_field(key: str) -> Check:
    """Require that items differ in a field; the cause is at the field."""

    def check(new: Any, old: Any) -> Causes:
        places = find_duplicate_items(new, key)
        return [duplicate(f"[{at}].{key}", new[at][key]) for at in places if new[at].get(key)]

    return check


def unique_keys(*keys: str) -> Check:
    """Require that items differ in their keys; the cause shows only the keys."""

    def check(new: Any, old: Any) -> Causes:
        shown = [{key: item.get(key) for key in keys} for item in new]
        return [duplicate(f"[{at}]", shown[at]) for at in find_duplicate_items(new, *keys)]

    return check


def find_duplicate_items(items: Iterable[Any], *keys: str) -> list[int]:
    """Return the indexes of items whose keys occurred before."""
    return find_duplicate_values(tuple([item.get(key) for key in keys]) for item in items)


def find_duplicate_values(values: Iterable[Hashable]) -> list[int]:
    """Return the indexes of values that occurred before."""
    listed = list(values)
    if len(set(listed)) == len(listed):
        return []
    seen: set[Hashable] = set()
    places: list[int] = []
    for at, value in enumerate(listed):
        if value in seen:
            places.append(at)
        seen.add(value)
    return places


def union(*members: str) -> Check:
    """Require exactly one member of a union; on update only if the members changed."""
    listed = ", ".join(f"`{member}`" for member in members)

    def check(new: Any, old: Any) -> Causes:
        found = [member for member in members if member in (new or {})]
        if old is not CREATED and found == [member for member in members if member in (old or {})]:
            return ()
        if not found:
            return [invalid("", "", f"must specify one of: {listed}")]
        if len(found) > 1:
            value = f"{{{', '.join(found)}}}"
            return [invalid("", value, f"must specify exactly one of: {listed}")]
        return ()

    return check
