"""Create, update and patch: the same handlers for every kind.

    body ─▶ conform ─▶ admission: resolve ─▶ defaults ─▶ admission: mutate ─▶ validation rules
         ─▶ admission: validate ─▶ admission: charge ─▶ one transaction ─▶ reply

The handlers must not await anything between reading the old object and the commit: a write is
committed against the state that it was checked against.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from phalanx.api.conversion.alias_resolution import ResolvedRequest, annotate
from phalanx.api.conversion.hub import causes_in_version, from_hub, replacement_to_hub
from phalanx.api.errors import (
    ApiError,
    BadRequest,
    Cause,
    Invalid,
    TooLarge,
    UnsupportedMediaType,
)
from phalanx.api.field_management.managed_fields import FieldManager, update_managed_fields
from phalanx.api.gated_fields import drop_disabled
from phalanx.api.kinds import NAMESPACE, POD, Kind
from phalanx.api.patch import PatchFailed, TooManyOperations, affected_fields, apply_patch
from phalanx.api.validation.pod_template import drop_stale_workload_annotations
from phalanx.api.validation.registry import check_gated_rules
from phalanx.api.wire import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object, Reply
from phalanx.server.admission import AdmissionRequest, Operation, run_phase
from phalanx.server.context import ServerContext
from phalanx.server.custom_resources import check_not_terminating, finish_definition_deletion
from phalanx.server.node_allocations import allocation_writes, pod_allocation
from phalanx.server.objects import (
    already_exists_error,
    conflict_error,
    decode_record,
    encoder,
    modified_error,
    not_found_error,
    raise_if_invalid,
    serialize_object,
    serialize_stored,
)
from phalanx.server.request_bodies import (
    check_kind,
    conform_object,
    convert_to_stored,
    read_object,
    rename_fields,
)
from phalanx.server.request_info import RequestInfo, invalid_options
from phalanx.server.security.write_restrictions import check_write_restrictions
from phalanx.server.serialization import encode_reply, load_body, media_type, negotiate
from phalanx.server.subresource_strategy import SERVER_MANAGED_METADATA, restore_immutable_fields
from phalanx.store.kv import KeyValue, RevisionConflict, StoreWrite

#: Returns the new object, given a copy of the stored one that it may change in place.
Mutation = Callable[[Object], Object]

_GENERATED_SUFFIX_LENGTH = 5
_NAME_GENERATION_ATTEMPTS = 8
_MAX_GENERATE_NAME_LENGTH = 58
_MAX_FIELD_MANAGER_LENGTH = 128
_NATIVE_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
_PATCH_TYPES = (*_NATIVE_PATCH_TYPES, APPLY_PATCH)
#: Custom resources have no merge keys for a strategic merge patch.
_CUSTOM_RESOURCE_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)


async def create(context: ServerContext, call: RequestInfo) -> Reply:
    """Handle POST: create an object."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    cacheable = context.admission_cache.parse_request(call)
    obj = None
    if cacheable:
        now = context.now_timestamp()
        obj = context.admission_cache.instantiate(cacheable, context.random, now)
    if obj is None:
        with context.meter.stage("parse"):
            obj = read_object(context, call)
        _check_name_and_namespace(call, obj)
        obj = convert_to_stored(call, obj)
        _admit_new(context, call, obj)
        if cacheable:
            context.admission_cache.remember(cacheable, call, obj)
    return encode_reply(await _store_new(context, call, obj), accepted)


async def insert(
    context: ServerContext, call: RequestInfo, obj: Object, *, has_managed_fields: bool = False
) -> Reply:
    """Admit, validate and store a new object that conforms to its schema.

    `has_managed_fields` is set by server-side apply, which computes managedFields itself.
    """
    _admit_new(context, call, obj, has_managed_fields=has_managed_fields)
    return await _store_new(context, call, obj)


def _admit_new(
    context: ServerContext, call: RequestInfo, obj: Object, *, has_managed_fields: bool = False
) -> None:
    """Complete a new object in place, or refuse it."""
    kind, meta = call.stored_kind, obj["metadata"]
    if meta.get("resourceVersion"):
        raise BadRequest("resourceVersion should not be set on objects to be created")
    strategy = context.registry.strategy(kind)
    check_not_terminating(context, call.kind)
    _init_metadata(context, call, meta)
    request = AdmissionRequest(context, call, obj)
    with context.meter.stage("admit"):
        run_phase("resolve", "CREATE", request)
        strategy.apply_defaults(obj)
        _drop_disabled_fields(context, call, obj, None)
        if not has_managed_fields:
            record_field_ownership(context, call, None, obj)
        run_phase("mutate", "CREATE", request)
        _drop_disabled_fields(context, call, obj, None)
        strategy.prepare_for_create(obj, context.now_timestamp())
        _validate(request, "CREATE")


async def _store_new(context: ServerContext, call: RequestInfo, obj: Object) -> Reply:
    """Store an admitted object, unless its name is taken or a quota refuses it."""
    kind, meta = call.stored_kind, obj["metadata"]
    key = kind.store_key(call.namespace, meta["name"])
    if taken := context.store.pending(key):
        # The client may read the object next: it must be committed by then.
        await context.store.commit(())
        deleting = bool(decode_record(taken)["metadata"].get("deletionTimestamp"))
        raise already_exists_error(
            kind,
            meta["name"],
            being_deleted=deleting,
            is_generated=bool(meta.get("generateName")),
        )
    if call.dry_run:
        _accounting_writes(context, call, "CREATE", old=None, new=obj)
        return _reply(201, serialize_object(call.kind, obj), call)
    record = await store_object(context, call, key, obj)
    return _reply(201, serialize_stored(call.kind, record.value), call)


async def update(context: ServerContext, call: RequestInfo) -> Reply:
    """Handle PUT: replace an object, or create it if its kind allows that."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    obj = read_object(context, call)
    _check_name_and_namespace(call, obj)
    if context.store.pending(call.key) is None and call.kind.create_on_update:
        return encode_reply(await insert(context, call, convert_to_stored(call, obj)), accepted)

    def replace_object(old: Object) -> Object:
        return convert_to_stored(call, obj, partial(replacement_to_hub, old))

    return encode_reply(await modify(context, call, replace_object), accepted)


async def patch(context: ServerContext, call: RequestInfo) -> Reply:
    """Handle PATCH, except for server-side apply."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    patch_type = media_type(call.request)
    known = _CUSTOM_RESOURCE_PATCH_TYPES if call.kind.is_custom else _PATCH_TYPES
    if patch_type not in known:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(known)
        )
    if "force" in call.query:
        raise _force_forbidden()
    changes = rename_fields(call, patch_type, load_body(call.request, (patch_type,)))

    def patch_object(old: Object) -> Object:
        return _patch_object(context, call, patch_type, old=old, changes=changes)

    return encode_reply(await modify(context, call, patch_object, is_patch=True), accepted)


def _patch_object(
    context: ServerContext,
    call: RequestInfo,
    patch_type: str,
    *,
    old: Object,
    changes: ResolvedRequest,
) -> Object:
    served = from_hub(call.kind, old)
    whole = {"apiVersion": call.kind.api_version, "kind": call.kind.name, **served}
    schema = context.registry.strategy(call.kind).schema
    try:
        new = apply_patch(patch_type, schema, whole, changes.value)
    except TooManyOperations as error:
        raise TooLarge(str(error)) from error
    except PatchFailed as error:
        raise Invalid("the server rejected our request due to an error in our request") from error
    annotate(new, changes.annotations)
    check_kind(call.kind, new)
    new.pop("apiVersion", None)
    new.pop("kind", None)
    _conform_patched_fields(context, call, new, affected_fields(patch_type, new, changes.value))
    _check_name_and_namespace(call, new)
    return convert_to_stored(call, new, partial(replacement_to_hub, old))


def _conform_patched_fields(
    context: ServerContext, call: RequestInfo, new: Object, fields: Collection[str]
) -> None:
    """Prune and check the top-level fields that a patch may have changed.

    The other fields are stored and conform already, except in custom resources: their schema may
    have changed since the object was stored.
    """
    if call.kind.is_custom:
        conform_object(context, call, new)
        return
    part = {field: new.pop(field) for field in fields}
    conform_object(context, call, part)
    new.update(part)


async def modify(
    context: ServerContext,
    call: RequestInfo,
    mutate: Mutation,
    *,
    is_patch: bool = False,
    has_managed_fields: bool = False,
) -> Reply:
    """Replace the stored object by what `mutate` makes of it, if it passes all checks."""
    kind, record = call.stored_kind, context.store.pending(call.key)
    if record is None:
        raise not_found_error(call.kind, call.name)
    old = decode_record(record)
    new = mutate(decode_record(record))
    _check_preconditions(call, old, new, is_patch=is_patch)
    restore_immutable_fields(kind, call.subresource, old, new)
    request = AdmissionRequest(context, call, new, old)
    run_phase("resolve", "UPDATE", request)
    context.registry.strategy(kind).apply_defaults(new)
    _drop_disabled_fields(context, call, new, old)
    if not has_managed_fields:
        record_field_ownership(context, call, old, new)
    _bump_generation(call, old, new)
    _validate(request, "UPDATE")
    if new == old:
        # An empty commit returns when all earlier writes are durable: the reply shows one of them.
        await context.store.commit(())
        return _reply(200, serialize_stored(call.kind, record.value), call)
    if call.dry_run:
        _accounting_writes(context, call, "UPDATE", old=old, new=new)
        return _reply(200, serialize_object(call.kind, new), call)
    if is_deletable(kind, new):
        last = await remove_object(context, call, record, old=old, last=new)
        await finish_definition_deletion(context, kind)
        return _reply(200, serialize_object(call.kind, last), call)
    written = await store_object(context, call, record.key, new, record=record, old=old)
    return _reply(200, serialize_stored(call.kind, written.value), call)


def _drop_disabled_fields(
    context: ServerContext, call: RequestInfo, new: Object, old: Object | None
) -> None:
    """Drop fields of disabled features, whether the client, a default or admission set them."""
    kind = call.stored_kind
    if not kind.is_custom:
        call.warnings.extend(drop_disabled(context.gates, kind.schema, new, old))
        drop_stale_workload_annotations(kind.schema, new)


def _validate(request: AdmissionRequest, operation: Operation) -> None:
    """Refuse an object that breaks a rule or a limit; collect warnings for the client.

    The rules check the stored version, some of them only for objects of one served version. Causes
    name the fields of the version that the client sent.
    """
    context, call, new, old = request.context, request.call, request.object, request.old
    kind = call.stored_kind
    causes = list(context.registry.strategy(call.kind).validate(new, old, call.subresource))
    causes += check_gated_rules(context.gates, kind, new, old)
    raise_if_invalid(kind, new["metadata"].get("name", ""), causes_in_version(call.kind, causes))
    run_phase("validate", operation, request)
    check_write_restrictions(context, call, new, old)
    call.warnings.extend(context.registry.strategy(kind).warnings(new, old))


async def store_object(
    context: ServerContext,
    call: RequestInfo,
    key: str,
    obj: Object,
    *,
    record: KeyValue | None = None,
    old: Object | None = None,
    extra_writes: Sequence[StoreWrite] = (),
) -> KeyValue:
    """Commit an object, its accounting and `extra_writes` in one transaction.

    `record` and `old` are the stored object that it replaces.
    """
    operation: Operation = "UPDATE" if record else "CREATE"
    writes = [StoreWrite(key, encoder(obj), record.revision if record else 0), *extra_writes]
    writes += _accounting_writes(context, call, operation, old=old, new=obj)
    try:
        with context.meter.stage("commit"):
            change, *_ = await context.store.commit(writes)
    except RevisionConflict as error:
        raise modified_error(call.stored_kind, obj["metadata"]["name"]) from error
    assert change.after is not None
    return change.after


async def remove_object(
    context: ServerContext,
    call: RequestInfo,
    record: KeyValue,
    *,
    old: Object,
    last: Object,
    extra_writes: Sequence[StoreWrite] = (),
) -> Object:
    """Remove an object from the store; return `last`, its last state, with the final revision."""
    writes = [StoreWrite(record.key, None, record.revision), *extra_writes]
    writes += _accounting_writes(context, call, "DELETE", old=old, new={})
    try:
        change, *_ = await context.store.commit(writes)
    except RevisionConflict as error:
        raise modified_error(call.stored_kind, last["metadata"]["name"]) from error
    last["metadata"]["resourceVersion"] = str(change.revision)
    return last


def _accounting_writes(
    context: ServerContext,
    call: RequestInfo,
    operation: Operation,
    *,
    old: Object | None,
    new: Object,
) -> list[StoreWrite]:
    """The writes that update quotas and node allocations; raises if a quota is exceeded."""
    request = AdmissionRequest(context, call, new, old)
    run_phase("charge", operation, request)
    if call.kind is POD:
        allocations = [(pod_allocation(old), pod_allocation(new))]
        return request.writes + allocation_writes(context.store, allocations)
    return request.writes


def is_deletable(kind: Kind, obj: Object) -> bool:
    """Whether an object is being deleted and neither finalizers nor a grace period remain."""
    meta = obj["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers"):
        return False
    if kind is NAMESPACE:
        return not obj.get("spec", {}).get("finalizers")
    return not meta.get("deletionGracePeriodSeconds")


def _init_metadata(context: ServerContext, call: RequestInfo, meta: Object) -> None:
    """Set the metadata that the server owns in a new object, whatever the client sent."""
    for key in SERVER_MANAGED_METADATA:
        meta.pop(key, None)
    if not meta.get("name") and (prefix := meta.get("generateName")):
        meta["name"] = _generate_name(context, call, prefix)
    if call.kind.namespaced:
        meta["namespace"] = call.namespace
    meta["uid"] = context.random.uid()
    meta["creationTimestamp"] = context.now_timestamp()
    if call.kind.generation:
        meta["generation"] = 1


def _generate_name(context: ServerContext, call: RequestInfo, prefix: str) -> str:
    for _ in range(_NAME_GENERATION_ATTEMPTS):
        name = prefix[:_MAX_GENERATE_NAME_LENGTH] + context.random.suffix(_GENERATED_SUFFIX_LENGTH)
        if context.store.pending(call.kind.store_key(call.namespace, name)) is None:
            break
    return name


def _check_name_and_namespace(call: RequestInfo, obj: Object) -> None:
    """Refuse a body whose name or namespace differs from the request path."""
    meta = obj.setdefault("metadata", {})
    if call.kind.namespaced and meta.get("namespace", call.namespace) != call.namespace:
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    name = meta.get("name", "")
    if call.name and name != call.name:
        raise BadRequest(
            f"the name of the object ({name}) does not match the name on the URL ({call.name})"
        )


def _check_preconditions(call: RequestInfo, old: Object, new: Object, *, is_patch: bool) -> None:
    """Check optimistic concurrency: uid and resourceVersion must be those of the stored object."""
    kind, meta = call.kind, new["metadata"]
    version = meta.get("resourceVersion", "")
    if not version and not kind.update_without_version and not is_patch:
        detail = "Invalid value: 0: must be specified for an update"
        cause = Cause("metadata.resourceVersion", "FieldValueInvalid", detail)
        raise Invalid(
            f'{kind.resource} "{call.name}" is invalid: {cause}',
            name=call.name,
            group=kind.group,
            kind=kind.plural,
            causes=[cause],
        )
    if version and not version.isdecimal():
        raise BadRequest(f'strconv.ParseUint: parsing "{version}": invalid syntax')
    if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
        detail = (
            f"Precondition failed: UID in precondition: {meta['uid']}, "
            f"UID in object meta: {old['metadata']['uid']}"
        )
        raise conflict_error(kind, call.name, detail)
    if version and version != old["metadata"]["resourceVersion"]:
        raise modified_error(kind, call.name)


def record_field_ownership(
    context: ServerContext, call: RequestInfo, old: Object | None, new: Object
) -> None:
    """Update managedFields: the writer owns the fields that it added or changed."""
    kind, agent = call.stored_kind, call.request.headers.get("user-agent", "")
    manager = call.query.get("fieldManager") or agent.partition("/")[0] or "unknown"
    writer = FieldManager(manager[:_MAX_FIELD_MANAGER_LENGTH], kind.api_version, call.subresource)
    # The status of a new object is dropped when it has a status subresource: it has no owner.
    written = new
    if old is None and "status" in kind.subresources:
        written = {key: value for key, value in new.items() if key != "status"}
    strategy = context.registry.strategy(kind)
    if not strategy.matches_structure(written):
        return
    if old is not None and not strategy.matches_structure(old):
        old = None  # The schema has changed since: the writer owns the whole object.
    fields = update_managed_fields(strategy.schema, old, written, writer, context.now_timestamp())
    if fields:
        new["metadata"]["managedFields"] = fields
    else:
        new["metadata"].pop("managedFields", None)


def _bump_generation(call: RequestInfo, old: Object, new: Object) -> None:
    """Increase the generation if the spec changed; of custom resources, anything but metadata."""
    kind, fields = call.stored_kind, ["spec"] if "spec" in old else []
    if kind.is_custom:
        fields = [key for key in {**old, **new} if key not in ("metadata", call.subresource)]
    if kind.generation and any(new.get(field) != old.get(field) for field in fields):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _force_forbidden() -> ApiError:
    cause = Cause(
        "force", "FieldValueForbidden", "Forbidden: may not be specified for non-apply patch"
    )
    return invalid_options("PatchOptions", [cause])


def _reply(code: int, body: bytes, call: RequestInfo) -> Reply:
    return Reply(code, body, headers=call.warning_headers())
