"""The words that rules are written in: checks, and ways to put them together.

A check takes the new value and the old one and gives causes, told relative to the value. At a
creation the old value is CREATED, so that an absent value and a first one stay apart. Paths are
built only for what is wrong.

    struct(
        ("minCount", needed(at_least(1))),
        ("topology", given(at_most(1, each(TOPOLOGY)))),
        ("workloadRef", frozen(given(REFERENCE))),
    )

Checks never change what they look at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Any, Final

import orjson

from phalanx.api.errors import Cause
from phalanx.api.field_errors import (
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
from phalanx.api.json_cache import CACHE_SIZE, MAX_CACHED_BYTES, compact_json


class _Created:
    """Stands for the old value where there is none."""


CREATED: Final = _Created()

Check = Callable[[Any, Any], Causes]
IMMUTABLE = "field is immutable"


def struct(*rows: tuple[str, Check]) -> Check:
    """Each field by its own check.

    Most fields of most objects are absent, and absence is no fault of most of them: an object is
    first searched for any fault by what it has, had and must have, then told in order.
    """
    optional = {name: inner for name, inner in rows if not _rejects_absence(inner)}
    needed_rows = tuple((name, inner) for name, inner in rows if name not in optional)

    def told(fields: Any, old: Any) -> Causes:
        found: list[Cause] = []
        for name, inner in rows:
            was = CREATED if old is CREATED else old.get(name)
            found += prefix_causes(name, inner(fields.get(name), was))
        return found

    def check(new: Any, old: Any) -> Causes:
        fields, before = new or {}, old or {}
        is_new = old is CREATED
        for name, needed_check in needed_rows:
            if needed_check(fields.get(name), CREATED if is_new else before.get(name)):
                return told(fields, before)
        for name in fields if is_new else {**before, **fields}:
            inner = optional.get(name)
            if inner and inner(fields.get(name), CREATED if is_new else before.get(name)):
                return told(fields, before)
        return ()

    return check


def _rejects_absence(check: Check) -> bool:
    """Whether a check finds fault with what is not there, or was not and is not."""
    return bool(check(None, CREATED) or check(None, None))


def all_of(*checks: Check) -> Check:
    """Several checks of one value."""

    def check(new: Any, old: Any) -> Causes:
        found: Causes = ()
        for inner in checks:
            if causes := inner(new, old):
                found = [*found, *causes]
        return found

    return check


def cached(check: Check) -> Check:
    """A check of a whole part of an object, done once for the same words.

    Members of a gang are created with the same spec; and what is as it was needs no second look.
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
    """It must be there, whatever it is."""
    return () if new else [required("")]


def mandatory(check: Check) -> Check:
    """It must be there, and neither empty nor zero."""

    def check_needed(new: Any, old: Any) -> Causes:
        return check(new, old) if new else [required("")]

    return check_needed


def optional(check: Check) -> Check:
    """It may be absent or empty; if it is not, it is checked."""

    def check_given(new: Any, old: Any) -> Causes:
        return check(new, old) if new or new == 0 else ()

    return check_given


def if_present(check: Check) -> Check:
    """It may be absent; an empty one is checked."""

    def check_present(new: Any, old: Any) -> Causes:
        return () if new is None else check(new, old)

    return check_present


def each(check: Check) -> Check:
    """Every item of a list."""

    def check_each(new: Any, old: Any) -> Causes:
        found: Causes = ()
        for at, item in enumerate(new):
            if causes := check(item, CREATED):
                found = [*found, *prefix_causes(f"[{at}]", causes)]
        return found

    return check_each


def each_keyed(key: str, check: Check) -> Check:
    """Every item of a list beside the old one of the same key; one that is as it was is let be."""

    def check_each(new: Any, old: Any) -> Causes:
        before = {} if old is CREATED else {item.get(key): item for item in old}
        found: Causes = ()
        for at, item in enumerate(new):
            was = before.get(item.get(key), CREATED)
            if item != was and (causes := check(item, was)):
                found = [*found, *prefix_causes(f"[{at}]", causes)]
        return found

    return check_each


def fixed_items(key: str, check: Check) -> Check:
    """No item comes or goes after the creation; where one does, nothing else is told."""

    def check_items(new: Any, old: Any) -> Causes:
        if old is CREATED:
            return check(new, old)
        now, before = [item.get(key) for item in new], [item.get(key) for item in old]
        added = [at for at, name in enumerate(now) if name not in before]
        found = [forbidden(f"[{at}]", "item may not be added") for at in added]
        if any(name not in now for name in before):
            found.append(forbidden("", "item may not be removed"))
        return found or check(new, old)

    return check_items


def immutable(check: Check) -> Check:
    """It is checked once and may never change."""

    def check_frozen(new: Any, old: Any) -> Causes:
        if old is CREATED:
            return check(new, old)
        return () if new == old else [invalid("", None, IMMUTABLE)]

    return check_frozen


def if_changed(check: Check) -> Check:
    """It is checked only when it is new or has changed."""

    def check_changed(new: Any, old: Any) -> Causes:
        return () if old is not CREATED and new == old else check(new, old)

    return check_changed


def on_create(check: Check) -> Check:
    """It is checked only when the object is created."""

    def check_created(new: Any, old: Any) -> Causes:
        return check(new, old) if old is CREATED else ()

    return check_created


def string_format(faults: StringValidator) -> Check:
    """A text of a format; one that is absent is empty."""

    def check(new: Any, old: Any) -> Causes:
        found = faults(new or "")
        return [invalid("", new or "", fault) for fault in found] if found else ()

    return check


def one_of(*supported: str) -> Check:
    """One of the known values, told in this order."""

    def check(new: Any, old: Any) -> Causes:
        return () if new in supported else [unsupported("", new, supported)]

    return check


def minimum(low: int) -> Check:
    """A number not below."""

    def check(new: Any, old: Any) -> Causes:
        return () if new >= low else [invalid("", new, f"must be greater than or equal to {low}")]

    return check


def maximum(high: int) -> Check:
    """A number not above."""

    def check(new: Any, old: Any) -> Causes:
        return () if new <= high else [invalid("", new, f"must be less than or equal to {high}")]

    return check


def in_range(low: int, high: int) -> Check:
    """A number of a range."""

    def check(new: Any, old: Any) -> Causes:
        if low <= new <= high:
            return ()
        return [invalid("", new, f"must be between {low} and {high}, inclusive")]

    return check


def max_items(limit: int, check: Check) -> Check:
    """So many items; more are not even looked at."""

    def check_count(new: Any, old: Any) -> Causes:
        return [too_many("", len(new), limit)] if len(new) > limit else check(new, old)

    return check_count


def unique(*keys: str) -> Check:
    """Items of a list that differ in a field; the cause is told at the item."""

    def check(new: Any, old: Any) -> Causes:
        return [duplicate(f"[{at}]", new[at]) for at in find_duplicate_items(new, *keys)]

    return check


def unique_field(key: str) -> Check:
    """Items of a list that differ in a field; the cause is told at the field."""

    def check(new: Any, old: Any) -> Causes:
        places = find_duplicate_items(new, key)
        return [duplicate(f"[{at}].{key}", new[at][key]) for at in places if new[at].get(key)]

    return check


def unique_keys(*keys: str) -> Check:
    """Items of a list that differ in their keys; the cause shows these and nothing else."""

    def check(new: Any, old: Any) -> Causes:
        shown = [{key: item.get(key) for key in keys} for item in new]
        return [duplicate(f"[{at}]", shown[at]) for at in find_duplicate_items(new, *keys)]

    return check


def find_duplicate_items(items: Iterable[Any], *keys: str) -> list[int]:
    """Where items are whose keys came before."""
    return find_duplicate_values(tuple([item.get(key) for key in keys]) for item in items)


def find_duplicate_values(values: Iterable[Hashable]) -> list[int]:
    """Where values are that came before."""
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
    """Exactly one of the members; on update only when they are others than before."""
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
