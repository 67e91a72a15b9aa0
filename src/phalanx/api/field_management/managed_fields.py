"""Field management: metadata.managedFields, and server-side apply.

    create, update, patch     update_managed_fields: the writer owns what it added or changed
    apply                     server_side_apply: merges a configuration, or returns conflicts

An entry belongs to a manager, an operation, a version and a subresource:

    {"manager": "kubectl", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
     "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}}}

A field may have several owners while they agree on its value. An update that changes it makes the
writer its only owner; an apply that changes it conflicts with other owners unless it is forced. A
field that an applier no longer states is removed if no other manager owns it.

Pure: the server calls it between admission and the store. Objects conform to their schema and are
not changed; unchanged entries are returned as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any, Final, NamedTuple

import orjson

from phalanx.api.errors import MAX_CAUSES, Cause
from phalanx.api.field_management.field_set import BadFieldSet, FieldSet, format_path
from phalanx.api.field_management.merge_diff import (
    compare,
    find_merge_error,
    include_parent_structs,
    merge_configuration,
    owned_fields,
    remove_fields,
)
from phalanx.api.schema import Schema
from phalanx.api.wire import Object

APPLY: Final = "Apply"
UPDATE: Final = "Update"
#: The largest number of update entries; the oldest ones are joined beyond it.
MAX_UPDATE_ENTRIES: Final = 10
#: The manager of joined update entries.
ANCIENT_CHANGES: Final = "ancient-changes"
#: The manager of all fields that an untracked object had before its first apply.
BEFORE_FIRST_APPLY: Final = "before-first-apply"

#: An apply never removes metadata as a whole.
_NEVER_REMOVED: Final = FieldSet({"f:metadata": {}})
_FIELDS_TYPE: Final = "FieldsV1"
#: A client that writes this resets managedFields.
_RESET_ENTRIES: Final[list[Object]] = [{}]


@dataclass(frozen=True, slots=True)
class FieldManager:
    """The writer: its field manager name, its API version, and the subresource that it writes."""

    name: str
    api_version: str
    subresource: str = ""


class FieldOwner(NamedTuple):
    """The identity of an entry. An applier's entry has no version, so it survives a change of
    version.
    """

    manager: str
    operation: str
    api_version: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == UPDATE else text


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """A new object: the merged configuration with its new managedFields."""

    object: Object


@dataclass(frozen=True, slots=True)
class ApplyConflicts:
    """The fields that other managers own with another value, by owner: `.spec.replicas`."""

    fields: tuple[tuple[FieldOwner, tuple[str, ...]], ...]

    def with_paths(self, path: Callable[[str], str]) -> ApplyConflicts:
        """Return the conflicts with each path converted."""
        return ApplyConflicts(
            tuple((owner, tuple(map(path, paths))) for owner, paths in self.fields)
        )

    @property
    def causes(self) -> tuple[Cause, ...]:
        """One cause per field and owner."""
        return tuple(
            Cause(path, "FieldManagerConflict", f"conflict with {owner}")
            for owner, paths in self.fields
            for path in paths
        )

    @property
    def message(self) -> str:
        """The message for the client."""
        causes = self.causes
        if len(causes) == 1:
            return f"Apply failed with 1 conflict: {causes[0].message}: {causes[0].field}"
        lines = [
            line
            for owner, paths in self.fields
            for line in (f"conflicts with {owner}:", *(f"- {path}" for path in paths))
        ]
        return f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Unmergeable:
    """The configuration has list items that cannot be distinguished."""

    message: str


# --------------------------------------------------------------------------------------- updates


def update_managed_fields(
    schema: Schema, old: Object | None, new: Object, *, manager: FieldManager, now: str
) -> list[Object]:
    """Return the managedFields of an object that was created (`old` is None), updated or patched.

    `new` is the object as the writer requested it, with defaults and without changes of the server.
    An object without entries is not tracked until the first apply.
    """
    entries = _current_entries(old, new, manager)
    if old is not None and not entries:
        return entries
    changed, removed = compare(schema, old, new)
    owner = FieldOwner(manager.name, UPDATE, manager.api_version, manager.subresource)
    if not entries:
        return list(_make_entry(owner, manager.api_version, time=now, fields=changed))
    if not changed and not removed:
        return entries
    mine, others = _split_by_owner(entries, owner)
    fields = (_entry_fields(mine) - removed) | changed
    time = now if changed else mine.get("time")
    kept = _remove_lost_fields(others, changed | removed)
    return _cap_updates([*kept, *_make_entry(owner, manager.api_version, time=time, fields=fields)])


def _current_entries(old: Object | None, new: Object, manager: FieldManager) -> list[Object]:
    """Return the entries before the write: those of the request if they are valid, else the
    stored.
    """
    kept: list[Object] = old["metadata"].get("managedFields", []) if old else []
    given = new["metadata"].get("managedFields")
    if not given or manager.subresource or given == kept:
        return kept
    if given == _RESET_ENTRIES:
        return []
    try:
        return _sort_entries(_parse_entries(given))
    except BadFieldSet:
        return kept


def _parse_entries(given: Iterable[Object]) -> list[Object]:
    entries: dict[FieldOwner, Object] = {}
    for entry in given:
        if entry.get("operation") not in (APPLY, UPDATE) or not entry.get("apiVersion"):
            raise BadFieldSet("an entry needs an operation and a version")
        if entry.get("fieldsType") != _FIELDS_TYPE:
            raise BadFieldSet(f"fieldsType must be {_FIELDS_TYPE}")
        fields = FieldSet.from_fields_v1(entry.get("fieldsV1", {}))
        entries[_entry_owner(entry)] = {**entry, "fieldsV1": fields.to_fields_v1()}
    return [entry for entry in entries.values() if entry["fieldsV1"]]


def _cap_updates(entries: list[Object]) -> list[Object]:
    """Sort entries, and join the oldest updates of a version if there are too many."""
    updates = [entry for entry in entries if entry["operation"] == UPDATE]
    excess = len(updates) - MAX_UPDATE_ENTRIES
    if excess <= 0:
        return _sort_entries(entries)
    bins: dict[str, list[Object]] = {}
    for entry in sorted(
        updates, key=lambda entry: (entry["manager"] != ANCIENT_CHANGES, _sort_key(entry))
    ):
        if excess <= 0:
            break
        same = bins.setdefault(entry["apiVersion"], [])
        excess -= bool(same)
        same.append(entry)
    full = [same for same in bins.values() if len(same) > 1]
    apart = [entry for entry in entries if not any(entry in same for same in full)]
    return _sort_entries([*apart, *map(_join_entries, full)])


def _join_entries(entries: list[Object]) -> Object:
    owner = FieldOwner(ANCIENT_CHANGES, UPDATE, entries[0]["apiVersion"])
    fields = reduce(or_, map(_entry_fields, entries))
    (entry,) = _make_entry(owner, owner.api_version, time=entries[-1].get("time"), fields=fields)
    return entry


# ----------------------------------------------------------------------------------------- apply


def server_side_apply(
    schema: Schema,
    live: Object | None,
    config: Object,
    *,
    manager: FieldManager,
    now: str,
    force: bool = False,
) -> ApplyResult | ApplyConflicts | Unmergeable:
    """Merge a configuration into an object, or create the object."""
    if text := find_merge_error(schema, config):
        return Unmergeable(text)
    before: Object = {"metadata": {}} if live is None else live
    owner = FieldOwner(manager.name, APPLY, subresource=manager.subresource)
    mine, others = _split_by_owner(_tracked_entries(schema, live, manager, now=now), owner)
    last, applied = _entry_fields(mine), owned_fields(schema, config)
    still_owned = reduce(or_, map(_entry_fields, others), applied | _NEVER_REMOVED)
    unowned = include_parent_structs(schema, last) - include_parent_structs(schema, still_owned)
    after = remove_fields(schema, merge_configuration(schema, before, config), unowned)
    changed, removed = compare(schema, before, after)
    conflicts = _find_conflicts(others, changed)
    if conflicts.fields and not force:
        return conflicts
    # A configuration that changes only who owns what leaves the time: a new owner has none.
    time = now if changed or removed else mine.get("time")
    kept = _remove_lost_fields(others, changed | removed)
    return _apply_result(
        after,
        _sort_entries([*kept, *_make_entry(owner, manager.api_version, time=time, fields=applied)]),
    )


def _tracked_entries(
    schema: Schema, live: Object | None, manager: FieldManager, *, now: str
) -> list[Object]:
    """Return the entries of an object; an untracked one has one for all its fields."""
    if live is None:
        return []
    if found := live["metadata"].get("managedFields"):
        return list(found)
    before = FieldManager(BEFORE_FIRST_APPLY, manager.api_version, manager.subresource)
    if manager.subresource:
        live = {key: live[key] for key in ("metadata", manager.subresource) if key in live}
    return update_managed_fields(schema, None, live, manager=before, now=now)


def _find_conflicts(entries: Iterable[Object], changed: FieldSet) -> ApplyConflicts:
    found = ((_entry_owner(entry), _entry_fields(entry) & changed) for entry in entries)
    conflicts = (
        (owner, tuple(map(format_path, islice(fields, MAX_CAUSES))))
        for owner, fields in found
        if fields
    )
    return ApplyConflicts(tuple(sorted(conflicts, key=lambda row: row[0])))


def _apply_result(obj: Object, entries: list[Object]) -> ApplyResult:
    # A copy: the merged object shares parts with its sources, and the caller changes the result.
    fresh: Object = orjson.loads(orjson.dumps(obj))
    fresh["metadata"].pop("managedFields", None)
    if entries:
        fresh["metadata"]["managedFields"] = entries
    return ApplyResult(fresh)


# ---------------------------------------------------------------- entries of other versions
#
# If a webhook converts between the versions of a kind, the fields of an entry are those of its own
# version. What a write changes for its owner is seen by comparing both states in that version.


def foreign_versions(obj: Object, api_version: str) -> set[str]:
    """Return the versions of the entries of an object, except one version."""
    entries = obj["metadata"].get("managedFields") or ()
    return {entry.get("apiVersion", "") for entry in entries} - {api_version}


def find_foreign_conflicts(
    schema: Schema, old: Object, new: Object, *, api_version: str, manager: FieldManager
) -> ApplyConflicts:
    """Return the fields that an apply takes from other managers; all in a version of theirs."""
    owner = FieldOwner(manager.name, APPLY, subresource=manager.subresource)
    entries = old["metadata"].get("managedFields") or ()
    others = [
        entry
        for entry in entries
        if entry.get("apiVersion") == api_version and _entry_owner(entry) != owner
    ]
    return _find_conflicts(others, compare(schema, old, new).changed)


def drop_lost_fields(schema: Schema, old: Object, new: Object, *, api_version: str) -> list[Object]:
    """Return the entries of `new` without what it takes from owners in a version of theirs."""
    changed, removed = compare(schema, old, new)
    kept: list[Object] = []
    for entry in new["metadata"].get("managedFields") or ():
        is_foreign = entry.get("apiVersion") == api_version
        kept += _remove_lost_fields([entry], changed | removed) if is_foreign else [entry]
    return kept


# --------------------------------------------------------------------------------------- entries


def _entry_owner(entry: Object) -> FieldOwner:
    operation = entry["operation"]
    version = entry["apiVersion"] if operation == UPDATE else ""
    return FieldOwner(entry.get("manager", ""), operation, version, entry.get("subresource", ""))


def _entry_fields(entry: Object) -> FieldSet:
    return FieldSet(entry.get("fieldsV1"))


def _make_entry(
    owner: FieldOwner, version: str, *, time: str | None, fields: FieldSet
) -> tuple[Object, ...]:
    """Return the entry of an owner, or () if it owns nothing."""
    if not fields:
        return ()
    entry: Object = {
        "manager": owner.manager,
        "operation": owner.operation,
        "apiVersion": version,
        "time": time,
        "fieldsType": _FIELDS_TYPE,
        "fieldsV1": fields.to_fields_v1(),
        "subresource": owner.subresource,
    }
    return ({key: value for key, value in entry.items() if value},)


def _split_by_owner(entries: Iterable[Object], owner: FieldOwner) -> tuple[Object, list[Object]]:
    """Return the entry of an owner ({} if there is none) and all other entries."""
    mine: Object = {}
    others = []
    for entry in entries:
        if _entry_owner(entry) == owner:
            mine = entry
        else:
            others.append(entry)
    return mine, others


def _remove_lost_fields(entries: Iterable[Object], lost: FieldSet) -> list[Object]:
    """Remove fields from entries, and entries without remaining fields."""
    result = []
    for entry in entries:
        fields = _entry_fields(entry)
        rest = fields - lost
        if rest is fields:
            result.append(entry)
        elif rest:
            result.append({**entry, "fieldsV1": rest.to_fields_v1()})
    return result


def _sort_entries(entries: list[Object]) -> list[Object]:
    return sorted(entries, key=_sort_key)


def _sort_key(entry: Object) -> tuple[Any, ...]:
    """Sort by operation (appliers first), time and manager."""
    return (
        entry["operation"],
        entry.get("time", ""),
        entry.get("manager", ""),
        entry["apiVersion"],
        entry.get("subresource", ""),
    )
