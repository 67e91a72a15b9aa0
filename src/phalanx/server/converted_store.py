"""The store as one version of a custom kind sees it, if a webhook converts between its versions.

Handlers of such a kind work in the version of the request, as in Kubernetes: they get a
`ConvertedStore`, which shows all objects in that version and writes them in the storage version.

    read   ─▶ ConversionNeeded ─▶ webhook ─▶ the handler begins again ─▶ read
    commit ─▶ webhook: to the storage version, and back for the reply ─▶ store

Handlers read synchronously, so a read of an object that is not converted yet raises
ConversionNeeded. `handle_converted` catches it, lets the webhook convert, and calls the handler
again; nothing is written before. Requests that need no conversion never wait for the webhook: those
in the version of the objects, and reads of metadata only. Deletions do without it if it fails.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import msgspec
import orjson

from phalanx.api.custom_resources.custom_kinds import CustomKind
from phalanx.api.errors import ApiError, Conflict, ConversionFailed
from phalanx.api.field_management.managed_fields import (
    ApplyConflicts,
    FieldManager,
    drop_lost_fields,
    find_foreign_conflicts,
    foreign_versions,
)
from phalanx.api.schema import Schema
from phalanx.api.wire import Object, Reply, StreamReply
from phalanx.server import watches
from phalanx.server.context import ServerContext
from phalanx.server.conversion_webhooks import ConversionKey, VersionConverter
from phalanx.server.objects import (
    EventRenderer,
    encode_deleted_state,
    encoder,
    name_version,
    split_version,
)
from phalanx.server.request_info import RequestInfo, SelectionPredicate
from phalanx.server.serialization import negotiate
from phalanx.store.kv import KeyValue, RevisionConflict, Store, StoreChange, StoreWrite

#: Attempts of a request whose objects change while a webhook converts them.
_MAX_ATTEMPTS = 20
_DELETE_VERBS = ("delete", "deletecollection")

Endpoint = Callable[[ServerContext, RequestInfo], Awaitable[Reply | StreamReply]]


class ConversionNeeded(Exception):
    """A read of objects that are stored in another version and not converted yet."""

    def __init__(self, records: Sequence[KeyValue]) -> None:
        super().__init__(f"{len(records)} objects are not converted yet")
        self.records = records


class ConvertedStore:
    """A store whose objects of one kind are in the version of that kind.

    Without a converter they are shown and stored in the version that they have. `leave_level` frees
    the place of the request in its priority level while it waits for the webhook.
    """

    def __init__(
        self,
        store: Store,
        kind: CustomKind,
        converter: VersionConverter | None,
        *,
        leave_level: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._store, self._kind, self._converter = store, kind, converter
        self._leave_level = leave_level
        self._prefix = kind.store_prefix()
        self._converted: dict[tuple[str, int], bytes] = {}
        #: Whether another request was faster: the handler should begin again.
        self.has_conflict = False

    @property
    def converter(self) -> VersionConverter | None:
        """What converts the objects; None if they are shown as they are stored."""
        return self._converter

    async def convert(self, records: Sequence[KeyValue]) -> None:
        """Convert objects for the reads to come. Raises ConversionFailed."""
        assert self._converter is not None
        with self._leave_level():
            self._converted |= await self._converter.convert_records(self._kind, records)

    def is_outdated(self, record: KeyValue) -> bool:
        """Whether an object is not in the storage version: an update without changes writes it."""
        stored, conversion = self._store.pending(record.key), self._kind.conversion
        if stored is None or conversion is None or self._converter is None:
            return False
        return self._stored_version(stored.value) != conversion.storage_version

    # ---- reads -----------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The newest committed revision."""
        return self._store.revision

    def get(self, key: str) -> KeyValue | None:
        """Return the committed value of a key."""
        return self._show_one(self._store.get(key))

    def pending(self, key: str) -> KeyValue | None:
        """Return the value that the next compare-and-swap of this key meets."""
        return self._show_one(self._store.pending(key))

    def range(
        self, prefix: str, *, at: int = 0, after: str = "", limit: int = 0
    ) -> Sequence[KeyValue]:
        """Return the values below a prefix by key."""
        return self._show(self._store.range(prefix, at=at, after=after, limit=limit))

    def pending_range(self, prefix: str) -> Sequence[KeyValue]:
        """Return the values below a prefix that the next compare-and-swaps meet."""
        return self._show(self._store.pending_range(prefix))

    def count(self, prefix: str, *, at: int = 0, after: str = "") -> int:
        """Return the number of values that `range` would return."""
        return self._store.count(prefix, at=at, after=after)

    def changes(self, since: int, prefix: str = "") -> Iterator[StoreChange]:
        """Yield what was committed after a revision, as it is stored."""
        return self._store.changes(since, prefix)

    def subscribe(self, deliver: Callable[[Sequence[StoreChange]], None]) -> Callable[[], None]:
        """Deliver the changes of each batch, as they are stored."""
        return self._store.subscribe(deliver)

    def _show_one(self, record: KeyValue | None) -> KeyValue | None:
        return None if record is None else self._show([record])[0]

    def _show(self, records: Sequence[KeyValue]) -> Sequence[KeyValue]:
        shown, missing = [], []
        for record in records:
            value = self._find(record) if record.key.startswith(self._prefix) else record.value
            if value is None:
                missing.append(record)
            else:
                shown.append(record._replace(value=value))
        if missing:
            raise ConversionNeeded(missing)
        return shown

    def _find(self, record: KeyValue) -> bytes | None:
        if self._converter is None:
            return split_version(record.value)[1]
        found = self._converted.get((record.key, record.revision))
        return found or self._converter.find(self._kind, record)

    # ---- writes ----------------------------------------------------------------------------------

    async def commit(self, writes: Sequence[StoreWrite]) -> Sequence[StoreChange]:
        """Write all or nothing; return the changes with the objects in the version of the kind."""
        prepared, shown = [], {}
        for write in writes:
            if write.encode is None or not write.key.startswith(self._prefix):
                prepared.append(write)
            elif self._converter is None:
                prepared.append(self._keep_version(write))
            else:
                with self._leave_level():
                    stored, shown[write.key] = await self._convert_write(write, self._converter)
                prepared.append(stored)
        try:
            changes = await self._store.commit(prepared)
        except RevisionConflict:
            self.has_conflict = True
            raise
        return [self._show_change(change, shown.get(change.key)) for change in changes]

    async def _convert_write(
        self, write: StoreWrite, converter: VersionConverter
    ) -> tuple[StoreWrite, Object]:
        """The write in the storage version, and the object as the reply shows it."""
        kind, conversion = self._kind, self._kind.conversion
        assert write.encode is not None
        assert conversion is not None
        storage = conversion.storage_version
        obj: Object = orjson.loads(write.encode(write.expect))
        before = self._store.pending(write.key) if write.expect else None
        if before is not None:
            await self._drop_lost_fields(before, obj)
        (stored,) = await converter.convert(kind, [obj], source=kind.version, target=storage)
        copy: Object = orjson.loads(orjson.dumps(stored))
        (shown,) = await converter.convert(kind, [copy], source=storage, target=kind.version)
        encode = encoder(stored)
        return write._replace(encode=lambda new: name_version(storage, encode(new))), shown

    async def _drop_lost_fields(self, before: KeyValue, new: Object) -> None:
        """Remove fields that a write changes from the managedFields of other versions.

        As in Kubernetes, the entries stay as they are if that cannot be found out.
        """
        for version in self._foreign_versions(new):
            try:
                old, changed = await self._both_in_version(version, before, new)
            except ConversionFailed:
                continue
            changed["metadata"]["managedFields"] = new["metadata"]["managedFields"]
            api_version, schema = self._schema(version)
            entries = drop_lost_fields(schema, old, changed, api_version=api_version)
            new["metadata"]["managedFields"] = entries

    async def find_conflicts(
        self, record: KeyValue, applied: Object, manager: FieldManager
    ) -> ApplyConflicts | None:
        """Return what an apply takes from managers that own fields of another version."""
        before = self._store.pending(record.key)
        if before is None or self._converter is None:
            return None
        for version in self._foreign_versions(applied):
            with self._leave_level():
                old, new = await self._both_in_version(version, before, applied)
            api_version, schema = self._schema(version)
            conflicts = find_foreign_conflicts(
                schema, old, new, api_version=api_version, manager=manager
            )
            if conflicts.fields:
                return conflicts
        return None

    def _foreign_versions(self, obj: Object) -> list[str]:
        kind, conversion = self._kind, self._kind.conversion
        assert conversion is not None
        found = foreign_versions(obj, kind.api_version)
        return [name for name in conversion.strategies if f"{kind.group}/{name}" in found]

    def _schema(self, version: str) -> tuple[str, Schema]:
        assert self._kind.conversion is not None
        strategy = self._kind.conversion.strategies[version]
        return f"{self._kind.group}/{version}", strategy.schema

    async def _both_in_version(
        self, version: str, before: KeyValue, new: Object
    ) -> tuple[Object, Object]:
        """Return the stored object and its next state in a version."""
        assert self._converter is not None
        stored: Object = orjson.loads(split_version(before.value)[1])
        copy: Object = orjson.loads(orjson.dumps(new))
        source = self._stored_version(before.value)
        (old,) = await self._converter.convert(self._kind, [stored], source=source, target=version)
        (changed,) = await self._converter.convert(
            self._kind, [copy], source=self._kind.version, target=version
        )
        return old, changed

    def _keep_version(self, write: StoreWrite) -> StoreWrite:
        record, encode = self._store.pending(write.key), write.encode
        assert encode is not None
        assert self._kind.conversion is not None
        version = (
            self._stored_version(record.value) if record else self._kind.conversion.storage_version
        )
        return write._replace(encode=lambda new: name_version(version, encode(new)))

    def _show_change(self, change: StoreChange, shown: Object | None) -> StoreChange:
        after = change.after
        if after is None or not change.key.startswith(self._prefix):
            return change
        if shown is None or self._converter is None:
            return change._replace(after=after._replace(value=split_version(after.value)[1]))
        value = encoder(shown)(change.revision)
        kind = self._kind
        key = ConversionKey(change.key, change.revision, kind.version, kind.revision)
        self._converter.remember(key, value)
        return change._replace(after=after._replace(value=value))

    def _stored_version(self, value: bytes) -> str:
        assert self._kind.conversion is not None
        return split_version(value)[0] or self._kind.conversion.unnamed_version

    def compact(self, revision: int) -> None:
        """Discard the history up to a revision."""
        self._store.compact(revision)

    async def close(self) -> None:
        """Do nothing: the store belongs to the server."""


async def handle_converted(
    context: ServerContext, request_info: RequestInfo, *, verb: str, endpoint: Endpoint
) -> Reply | StreamReply:
    """Call the handler of a request about a kind whose objects a webhook converts."""
    kind = request_info.kind
    assert isinstance(kind, CustomKind)
    hooks = context.dynamic_admission
    converter: VersionConverter | None = hooks.converter
    if request_info.request.method == "GET" and "Metadata" in negotiate(request_info.request).form:
        converter = None
    leave_level = partial(hooks.leave_level, verb, request_info)
    view = ConvertedStore(context.store, kind, converter, leave_level=leave_level)
    for _ in range(_MAX_ATTEMPTS):
        request_info.warnings.clear()
        try:
            return await endpoint(replace(context, store=view), request_info)
        except ConversionNeeded as needed:
            try:
                await view.convert(needed.records)
            except ConversionFailed:
                if verb not in _DELETE_VERBS or hooks.find_hooks(kind, "", "DELETE"):
                    raise
                # Only the reply needs the version of the request.
                view = ConvertedStore(context.store, kind, None)
        except Conflict:
            if not view.has_conflict:
                raise
            view.has_conflict = False
    raise Conflict(f"{kind.resource} change faster than their conversion webhook answers")


# ---- watches -------------------------------------------------------------------------------------


class StoredChange(msgspec.Struct, frozen=True):
    """A change of an object as it is stored, in the stream between watcher and conversion."""

    key: str
    revision: int
    before: tuple[int, str] | None
    after: tuple[int, str] | None


def render_stored_change(change: StoreChange) -> bytes:
    """A change as a line that `convert_events` reads."""
    before, after = (
        (record.revision, record.value.decode()) if record else None
        for record in (change.before, change.after)
    )
    line = msgspec.json.encode(StoredChange(change.key, change.revision, before, after))
    return _CHANGE_PREFIX + line + b"\n"


#: No event begins with it.
_CHANGE_PREFIX = b"\0"


async def convert_events(
    chunks: AsyncGenerator[bytes, None],
    converter: VersionConverter,
    kind: CustomKind,
    *,
    selection: SelectionPredicate,
    render: EventRenderer,
) -> AsyncGenerator[bytes, None]:
    """Convert the changes of a watch, and select and render them; other events pass unchanged."""
    try:
        async for chunk in chunks:
            lines = chunk.splitlines(keepends=True)
            changes = [
                msgspec.json.decode(line[1:], type=StoredChange)
                for line in lines
                if line.startswith(_CHANGE_PREFIX)
            ]
            records = [
                KeyValue(change.key, state[1].encode(), state[0], 0)
                for change in changes
                for state in (change.before, change.after)
                if state is not None
            ]
            values = await converter.convert_records(kind, records) if records else {}
            events = (
                _render_change(change, values, selection, render=render) for change in changes
            )
            data = b"".join(
                next(events) if line.startswith(_CHANGE_PREFIX) else line for line in lines
            )
            if data:
                yield data
    except ApiError as error:
        yield watches.error_event(error)
    finally:
        await chunks.aclose()


def _render_change(
    change: StoredChange,
    values: dict[tuple[str, int], bytes],
    selection: SelectionPredicate,
    *,
    render: EventRenderer,
) -> bytes:
    """The event of a change: ADDED, MODIFIED, DELETED or none."""
    old, new = (
        values[change.key, state[0]] if state else None for state in (change.before, change.after)
    )
    matched, matches = (
        value is not None and (selection.matches_all or selection.matches(orjson.loads(value)))
        for value in (old, new)
    )
    if matches and new is not None:
        return render("MODIFIED" if matched else "ADDED", new)
    if not matched or old is None or change.before is None:
        return b""
    last = encode_deleted_state(KeyValue(change.key, old, change.before[0], 0), change.revision)
    return render("DELETED", last)
