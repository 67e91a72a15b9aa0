"""CustomResourceDefinitions: their kinds are served as soon as the definition is committed.

    request ─▶ write_handlers ─▶ store ─▶ CustomResourceRegistrar: rows of KindRegistry ─▶ reply

`CustomResourceDefinitionStrategy` validates definitions and writes their status: free names are
accepted in the request that asks for them. The registrar follows the store. It changes the registry
after a commit and before the writer continues, so a client that reads the reply finds the kind
served, and a restarted server serves the same kinds.

A deleted definition waits for its objects (`delete_custom_objects`). The deletion of the last
object removes the definition (`finish_definition_deletion`). From the deletion timestamp on, no
object can be created (`check_not_terminating`).

A schema of thousands of fields or rules takes seconds to check and to compile. Handlers validate
synchronously, so the strategy raises SchemasNotCompiled for it. `handle_definition` catches it, has
a thread compile the schema, and calls the handler again; nothing is written before.

A definition of a built-in kind is refused. A definition that is older than the built-in kind stays,
but defines nothing; its objects belong to the built-in kind and outlive it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

from phalanx.api.custom_resources.compiled_schemas import SharedSchema, share_schema
from phalanx.api.custom_resources.custom_kinds import CustomKind, served_kinds
from phalanx.api.defaults.custom_resource_definition import (
    CLEANUP_FINALIZER,
    ESTABLISHED,
    NAMES_ACCEPTED,
    TakenNames,
    default_definition,
    find_condition,
    update_definition_status,
)
from phalanx.api.errors import Cause, Conflict, MethodNotAllowed, NoSuchResource, invalid
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, Kind
from phalanx.api.normalization import NormalizationResult
from phalanx.api.schema import Schema, schema
from phalanx.api.validation.checks import CREATED
from phalanx.api.validation.custom_resource_definition import (
    causes_of_versions,
    check_definition,
    check_definition_status,
    check_rule_count,
)
from phalanx.api.validation.metadata import check_metadata
from phalanx.api.wire import Object, Reply, StreamReply
from phalanx.server.context import ServerContext
from phalanx.server.dynamic_admission.registry import HOOK_PREFIXES
from phalanx.server.objects import decode_record, encoder, name_version, split_version
from phalanx.server.request_info import RequestInfo
from phalanx.server.resource_quotas import release_writes
from phalanx.store.kv import KeyValue, RevisionConflict, StoreChange, StoreWrite

_PREFIX = CUSTOM_RESOURCE_DEFINITION.store_prefix()
_CONFIGURATION_PREFIXES = (_PREFIX, *HOOK_PREFIXES)
#: Objects that are deleted per transaction.
_DELETE_BATCH = 500
#: Smaller schemas are compiled by the request itself, in a few milliseconds.
_LARGE_SCHEMA_BYTES = 8 * 1024
#: Attempts of a patch of a definition that others change at the same time.
_MAX_ATTEMPTS = 5

Endpoint = Callable[[ServerContext, RequestInfo], Awaitable[Reply | StreamReply]]


class CustomResourceRegistrar:
    """Keeps the kinds of a registry in step with the stored definitions.

    It also passes changes to `DynamicAdmission`, so that each commit is read once.
    """

    def __init__(self, context: ServerContext) -> None:
        self._dynamic_admission = context.dynamic_admission
        self._registry, self._watch_broadcaster = context.registry, context.watch_broadcaster
        self._registry.set_strategy(
            CUSTOM_RESOURCE_DEFINITION, CustomResourceDefinitionStrategy(context)
        )
        for record in context.store.range(_PREFIX):
            self._register(record.key, record)
        context.store.subscribe(self._on_commit)

    def _on_commit(self, changes: Sequence[StoreChange]) -> None:
        for change in changes:
            if change.key.startswith(_CONFIGURATION_PREFIXES):
                if change.key.startswith(_PREFIX):
                    self._register(change.key, change.after)
                else:
                    self._dynamic_admission.reload()

    def _register(self, key: str, record: KeyValue | None) -> None:
        rows, name = [], key.removeprefix(_PREFIX)
        if record is not None:
            rows = served_kinds(
                decode_record(record), created_revision=record.created, revision=record.revision
            )
        self._registry.define(name, [(row.kind, row.strategy) for row in rows])
        if not rows:
            plural, _, group = name.partition(".")
            self._watch_broadcaster.end_watches(_versionless_kind(group, plural).store_prefix())


#: How often Kubernetes repeats a cause in the metadata of a changed definition: it checks fields
#: that never change twice, finalizers once.
_REPEATED_CAUSES = {
    "annotations": 2, "labels": 2, "managedFields": 2, "ownerReferences": 2, "finalizers": 0,
}  # fmt: skip


def _repeat_causes(metadata: Sequence[Cause]) -> list[Cause]:
    """Return the causes in the metadata of a changed definition that Kubernetes repeats."""
    found: list[Cause] = []
    for cause in metadata:
        name = re.split(r"[.\[]", cause.field.removeprefix("metadata."), maxsplit=1)[0]
        found += [cause] * _REPEATED_CAUSES.get(name, 1)
    return found


class CustomResourceDefinitionStrategy:
    """Defaults, status and validation of definitions."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    @property
    def schema(self) -> Schema:
        """The schema of a definition."""
        return schema(CUSTOM_RESOURCE_DEFINITION.schema)

    def normalize(self, obj: Object, *, keep_empty: bool = False) -> NormalizationResult:
        """Drop unknown fields in place."""
        return self.schema.normalize(obj, keep_empty=keep_empty)

    def matches_structure(self, obj: Object) -> bool:
        """A conforming definition always does."""
        return True

    def apply_defaults(self, obj: Object) -> None:
        """Add defaults and the resulting status in place."""
        self.schema.apply_defaults(obj)
        default_definition(obj)
        update_definition_status(
            obj, names_in_use(self._context, obj), self._context.now_timestamp()
        )

    def prepare_for_create(self, obj: Object, now: str) -> None:
        """Replace the status that the client sent."""
        obj["status"] = {}
        self.apply_defaults(obj)

    def prepare_for_update(self, new: Object, old: Object, now: str) -> None:
        """Do nothing: the server writes the status of definitions itself."""

    def validate(self, new: Object, old: Object | None, subresource: str) -> Sequence[Cause]:
        """Return the causes to refuse a definition."""
        if causes := check_rule_count(new, old):
            return causes
        require_compiled_schemas(new)
        check = check_definition_status if subresource == "status" else check_definition
        metadata = check_metadata(CUSTOM_RESOURCE_DEFINITION, new, old)
        causes = [
            *metadata,
            *check(new, CREATED if old is None else old),
            *(self._check_not_built_in(new) if old is None else ()),
        ]
        if not causes:
            # A definition that cannot be served must fail before it is written.
            served_kinds(new, created_revision=0, revision=0)
        again = () if old is None else _repeat_causes(metadata)
        return [*dict.fromkeys(causes_of_versions(new, causes)), *again]

    def _check_not_built_in(self, new: Object) -> Sequence[Cause]:
        group, plural = _group_and_plural(new)
        if not self._context.registry.is_built_in(group, plural):
            return ()
        detail = f"{plural}.{group} is built in and needs no CustomResourceDefinition"
        return [invalid("spec.names.plural", plural, detail)]

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """Definitions have no warnings."""
        return ()


def _group_and_plural(definition: Object) -> tuple[str, str]:
    spec = definition["spec"]
    return spec.get("group", ""), spec.get("names", {}).get("plural", "")


def names_in_use(context: ServerContext, definition: Object) -> TakenNames:
    """The names that other definitions and built-in kinds have in the group of a definition."""
    group, name = definition["spec"].get("group", ""), definition["metadata"].get("name", "")
    others = [
        decode_record(one)
        for one in context.store.pending_range(_PREFIX)  # Another may be about to be committed.
        if one.key.endswith(f".{group}") and one.key != _PREFIX + name
    ]
    accepted = [one.get("status", {}).get("acceptedNames", {}) for one in others]
    known = [kind for kind in context.registry.built_in if kind.group == group]
    resources = [n for a in accepted for n in (a.get("plural"), a.get("singular"))]
    resources += [n for a in accepted for n in a.get("shortNames", ())]
    resources += [n for k in known for n in (k.plural, k.singular, *k.short_names)]
    kinds = [n for a in accepted for n in (a.get("kind"), a.get("listKind"))]
    kinds += [n for k in known for n in (k.name, k.list_name)]
    return TakenNames(frozenset(filter(None, resources)), frozenset(filter(None, kinds)))


def _definitions_of_group(context: ServerContext, group: str) -> list[KeyValue]:
    """The definitions of a group; the group is part of their name."""
    return [one for one in context.store.range(_PREFIX) if one.key.endswith(f".{group}")]


# ---- compilation ---------------------------------------------------------------------------------


class SchemasNotCompiled(Exception):
    """A definition has large schemas that are not compiled yet."""

    def __init__(self, schemas: Sequence[SharedSchema]) -> None:
        super().__init__(f"{len(schemas)} schemas are not compiled yet")
        self.schemas = schemas


def require_compiled_schemas(definition: Object) -> None:
    """Raise SchemasNotCompiled if the check of a definition would occupy the server for long."""
    schemas = [
        (one.get("schema") or {}).get("openAPIV3Schema")
        for one in definition["spec"].get("versions") or ()
    ]
    shared = dict.fromkeys(share_schema(one) for one in schemas if one)
    missing = [one for one in shared if one.size > _LARGE_SCHEMA_BYTES and not one.is_ready]
    if missing:
        raise SchemasNotCompiled(missing)


async def handle_definition(
    context: ServerContext, request_info: RequestInfo, *, endpoint: Endpoint
) -> Reply | StreamReply:
    """Call the handler of a request about a definition, again if schemas had to be compiled."""
    compiled: list[SharedSchema] = []  # Referred to here until the definition is served.
    for _ in range(_MAX_ATTEMPTS):
        request_info.warnings.clear()
        try:
            return await endpoint(context, request_info)
        except SchemasNotCompiled as found:
            await _compile(context, found.schemas)
            compiled += found.schemas
    raise Conflict("the definition changes faster than its schemas can be compiled")


async def _compile(context: ServerContext, schemas: Sequence[SharedSchema]) -> None:
    def compile_all() -> None:
        for one in schemas:
            one.prepare()

    if context.compiler is None:
        compile_all()
    else:
        await asyncio.get_running_loop().run_in_executor(context.compiler, compile_all)


# ---- deletion ------------------------------------------------------------------------------------


def check_not_terminating(context: ServerContext, kind: Kind) -> None:
    """Refuse to create an object of a definition that is being deleted, committed or not."""
    if not isinstance(kind, CustomKind):
        return
    record = context.store.pending(_PREFIX + kind.resource)
    if record is None:
        raise NoSuchResource
    # The kind was built from one revision of the definition: decode only a later one.
    is_terminating = kind.is_terminating
    if record.revision != kind.revision:
        is_terminating = "deletionTimestamp" in decode_record(record)["metadata"]
    if is_terminating:
        raise MethodNotAllowed("create not allowed while custom resource definition is terminating")


async def resume_deletions(context: ServerContext) -> None:
    """Continue deletions that a restart interrupted."""
    for record in context.store.range(_PREFIX):
        if "deletionTimestamp" in decode_record(record)["metadata"]:
            await delete_custom_objects(context, record.key.removeprefix(_PREFIX))


async def delete_custom_objects(context: ServerContext, name: str) -> None:
    """Delete the objects of a definition that is being deleted, then the definition."""
    record = context.store.get(_PREFIX + name)
    if record is not None:
        if kind := _find_stored_kind(context, decode_record(record)):
            await _delete_all_objects(context, kind)
        await remove_cleanup_finalizer(context, name)


async def finish_definition_deletion(context: ServerContext, kind: Kind) -> None:
    """After the removal of an object: remove its definition if that waited for it."""
    row = context.registry.find(kind.group, kind.version, kind.plural)
    if isinstance(row, CustomKind) and row.is_terminating:
        await remove_cleanup_finalizer(context, row.resource)


async def remove_cleanup_finalizer(context: ServerContext, name: str) -> None:
    """Remove a definition that is being deleted once it has no objects."""
    record = context.store.pending(_PREFIX + name)
    definition = decode_record(record) if record else {"metadata": {}}
    finalizers: list[str] = definition["metadata"].get("finalizers", [])
    if record is None or CLEANUP_FINALIZER not in finalizers:
        return
    kind = _find_stored_kind(context, definition)
    if kind and context.store.range(kind.store_prefix(), limit=1):
        return
    finalizers.remove(CLEANUP_FINALIZER)
    encode = encoder(definition) if finalizers else None
    await context.store.commit([StoreWrite(record.key, encode, record.revision)])
    await _retry_name_acceptance(context, definition["spec"]["group"])


def _find_stored_kind(context: ServerContext, definition: Object) -> Kind | None:
    """The kind of the objects of a definition, without a version; None if it has no objects.

    Objects below a name that was not accepted belong to another definition, and those of a built-in
    kind to that kind.
    """
    is_built_in = context.registry.is_built_in(*_group_and_plural(definition))
    if is_built_in or find_condition(definition, ESTABLISHED).get("status") != "True":
        return None
    return _versionless_kind(
        definition["spec"]["group"], definition["status"]["acceptedNames"]["plural"]
    )


def _versionless_kind(group: str, plural: str) -> Kind:
    return Kind(group, "", "", plural, "")


async def _delete_all_objects(context: ServerContext, kind: Kind) -> None:
    """Delete all objects of a kind, or mark those that have finalizers."""
    while True:
        candidates = [
            (record, _deletion_write(context, record))
            for record in context.store.range(kind.store_prefix())
        ]
        batch = [(record, write) for record, write in candidates if write][:_DELETE_BATCH]
        if not batch:
            return
        removed = [decode_record(record) for record, write in batch if write.encode is None]
        try:
            writes = [write for _, write in batch]
            await context.store.commit([*writes, *release_writes(context, kind, removed)])
        except RevisionConflict:
            # Another request writes one of the objects: retry when that is committed.
            await context.store.commit(())


def _deletion_write(context: ServerContext, record: KeyValue) -> StoreWrite | None:
    """The write that removes or marks an object; None if it is marked already."""
    obj = decode_record(record)
    meta = obj["metadata"]
    if not meta.get("finalizers"):
        return StoreWrite(record.key, None, record.revision)
    if "deletionTimestamp" in meta:
        return None
    meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = context.now_timestamp(), 0
    meta["generation"] = meta.get("generation", 0) + 1
    version, encode = split_version(record.value)[0], encoder(obj)
    if version:
        return StoreWrite(
            record.key, lambda new: name_version(version, encode(new)), record.revision
        )
    return StoreWrite(record.key, encode, record.revision)


async def _retry_name_acceptance(context: ServerContext, group: str) -> None:
    """Update definitions whose names were taken: some may be free now."""
    strategy = context.registry.strategy(CUSTOM_RESOURCE_DEFINITION)
    for record in _definitions_of_group(context, group):
        definition = decode_record(record)
        if find_condition(definition, NAMES_ACCEPTED).get("status") == "True":
            continue
        strategy.apply_defaults(definition)
        if definition == decode_record(record):
            continue
        try:
            write = StoreWrite(record.key, encoder(definition), record.revision)
            await context.store.commit([write])
        except RevisionConflict:
            continue  # The concurrent write updates the status itself.
