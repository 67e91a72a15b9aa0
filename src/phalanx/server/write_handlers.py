"""Create, update and patch: the same handlers for every kind.

    body ─▶ normalize ─▶ admission: resolve ─▶ defaults ─▶ admission: mutate ─▶ validation rules
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
from phalanx.api.feature_gates import drop_disabled
from phalanx.api.field_management.managed_fields import FieldManager, update_managed_fields
from phalanx.api.kinds import NAMESPACE, POD, RESOURCE_CLAIM, Kind
from phalanx.api.patch import (
    MalformedPatch,
    PatchFailed,
    TooManyOperations,
    affected_fields,
    apply_patch,
)
from phalanx.api.validation.pod_template import drop_stale_workload_annotations
from phalanx.api.validation.registry import check_gated_rules
from phalanx.api.wire import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object, Reply
from phalanx.server.admission import AdmissionRequest, Operation, run_phase
from phalanx.server.binding import allocation_writes, pod_allocation
from phalanx.server.claim_binding import device_writes, owner_status_writes
from phalanx.server.context import ServerContext
from phalanx.server.custom_resources import check_not_terminating, finish_definition_deletion
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
    SERVER_MANAGED_METADATA,
    check_kind,
    check_value_count,
    convert_to_stored,
    normalize_object,
    read_object,
    rename_fields,
    restore_immutable_fields,
    yield_if_large,
)
from phalanx.server.request_info import RequestInfo, invalid_options
from phalanx.server.security.write_restrictions import check_write_restrictions
from phalanx.server.serialization import encode_reply, load_body, media_type, negotiate
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


async def create(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle POST: create an object."""
    accepted = negotiate(request_info.request)
    request_info.check_dry_run()
    cacheable = context.admission_cache.parse_request(request_info)
    obj = None
    if cacheable:
        now = context.now_timestamp()
        obj = context.admission_cache.instantiate(cacheable, context.random, now)
    if obj is None:
        with context.meter.stage("parse"):
            obj = read_object(context, request_info)
        await yield_if_large(request_info)
        _check_name_and_namespace(request_info, obj)
        obj = convert_to_stored(request_info, obj)
        _admit_new(context, request_info, obj)
        if cacheable:
            context.admission_cache.remember(cacheable, request_info, obj)
    return encode_reply(await _store_new(context, request_info, obj), accepted)


async def insert(
    context: ServerContext,
    request_info: RequestInfo,
    obj: Object,
    *,
    has_managed_fields: bool = False,
) -> Reply:
    """Admit, validate and store a new object that is normalized by its schema.

    `has_managed_fields` is set by server-side apply, which computes managedFields itself.
    """
    _admit_new(context, request_info, obj, has_managed_fields=has_managed_fields)
    return await _store_new(context, request_info, obj)


def _admit_new(
    context: ServerContext,
    request_info: RequestInfo,
    obj: Object,
    *,
    has_managed_fields: bool = False,
) -> None:
    """Complete a new object in place, or refuse it."""
    kind, meta = request_info.stored_kind, obj["metadata"]
    if meta.get("resourceVersion"):
        raise BadRequest("resourceVersion should not be set on objects to be created")
    strategy = context.registry.strategy(kind)
    check_not_terminating(context, request_info.kind)
    _init_metadata(context, request_info, meta)
    request = AdmissionRequest(context, request_info, obj)
    with context.meter.stage("admit"):
        run_phase("resolve", "CREATE", request)
        strategy.apply_defaults(obj)
        _drop_disabled_fields(context, request_info, obj, None)
        if not has_managed_fields:
            record_field_ownership(context, request_info, None, obj)
        run_phase("mutate", "CREATE", request)
        _drop_disabled_fields(context, request_info, obj, None)
        strategy.prepare_for_create(obj, context.now_timestamp())
        _validate(request, "CREATE")


async def _store_new(context: ServerContext, request_info: RequestInfo, obj: Object) -> Reply:
    """Store an admitted object, unless its name is taken or a quota refuses it."""
    kind, meta = request_info.stored_kind, obj["metadata"]
    key = kind.store_key(request_info.namespace, meta["name"])
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
    if request_info.dry_run:
        _accounting_writes(context, request_info, "CREATE", old=None, new=obj)
        return _reply(201, serialize_object(request_info.kind, obj), request_info)
    record = await store_object(context, request_info, key, obj)
    return _reply(201, serialize_stored(request_info.kind, record.value), request_info)


async def update(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle PUT: replace an object, or create it if its kind allows that."""
    accepted = negotiate(request_info.request)
    request_info.check_dry_run()
    obj = read_object(context, request_info)
    await yield_if_large(request_info)
    _check_name_and_namespace(request_info, obj)
    if context.store.pending(request_info.key) is None and request_info.kind.create_on_update:
        return encode_reply(
            await insert(context, request_info, convert_to_stored(request_info, obj)), accepted
        )

    def replace_object(old: Object) -> Object:
        return convert_to_stored(request_info, obj, partial(replacement_to_hub, old))

    return encode_reply(await modify(context, request_info, replace_object), accepted)


async def patch(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle PATCH, except for server-side apply."""
    accepted = negotiate(request_info.request)
    request_info.check_dry_run()
    patch_type = media_type(request_info.request)
    known = _CUSTOM_RESOURCE_PATCH_TYPES if request_info.kind.is_custom else _PATCH_TYPES
    if patch_type not in known:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(known)
        )
    if "force" in request_info.query:
        raise _force_forbidden()
    changes = rename_fields(
        request_info, patch_type, load_body(request_info.request, (patch_type,))
    )
    await yield_if_large(request_info)

    def patch_object(old: Object) -> Object:
        return _patch_object(context, request_info, patch_type, old=old, changes=changes)

    return encode_reply(await modify(context, request_info, patch_object, is_patch=True), accepted)


def _patch_object(
    context: ServerContext,
    request_info: RequestInfo,
    patch_type: str,
    *,
    old: Object,
    changes: ResolvedRequest,
) -> Object:
    served = from_hub(request_info.kind, old)
    whole = {"apiVersion": request_info.kind.api_version, "kind": request_info.kind.name, **served}
    schema = context.registry.strategy(request_info.kind).schema
    try:
        new = apply_patch(patch_type, schema, whole, changes.value)
    except TooManyOperations as error:
        raise TooLarge(str(error)) from error
    except MalformedPatch as error:
        raise BadRequest(str(error)) from error
    except PatchFailed as error:
        raise Invalid("the server rejected our request due to an error in our request") from error
    annotate(new, changes.annotations)
    check_value_count(request_info.kind, new)
    check_kind(request_info.kind, new)
    new.pop("apiVersion", None)
    new.pop("kind", None)
    _keep_managed_fields_reset(new)
    try:
        _normalize_patched_fields(
            context, request_info, new, affected_fields(patch_type, new, changes.value)
        )
    except BadRequest as error:
        cause = Cause("patch", "FieldValueInvalid", f"Invalid value: {error.message}")
        raise Invalid(f' "" is invalid: {cause}', causes=[cause]) from error
    _check_name_and_namespace(request_info, new)
    return convert_to_stored(request_info, new, partial(replacement_to_hub, old))


def _keep_managed_fields_reset(new: Object) -> None:
    """Replace empty managedFields by the list that resets them: normalization drops empty lists."""
    meta = new.get("metadata")
    if isinstance(meta, dict) and meta.get("managedFields") == []:
        meta["managedFields"] = [{}]


def _normalize_patched_fields(
    context: ServerContext, request_info: RequestInfo, new: Object, fields: Collection[str]
) -> None:
    """Prune and check the top-level fields that a patch may have changed.

    The other fields are stored and normalized already, except in custom resources: their schema may
    have changed since the object was stored.
    """
    if request_info.kind.is_custom:
        normalize_object(context, request_info, new)
        return
    part = {field: new.pop(field) for field in fields}
    normalize_object(context, request_info, part)
    new.update(part)


async def modify(
    context: ServerContext,
    request_info: RequestInfo,
    mutate: Mutation,
    *,
    is_patch: bool = False,
    has_managed_fields: bool = False,
) -> Reply:
    """Replace the stored object by what `mutate` makes of it, if it passes all checks."""
    kind, record = request_info.stored_kind, context.store.pending(request_info.key)
    if record is None:
        raise not_found_error(request_info.kind, request_info.name)
    old = decode_record(record)
    new = mutate(decode_record(record))
    _check_preconditions(request_info, old, new, is_patch=is_patch)
    managed_fields = new["metadata"].get("managedFields")
    restore_immutable_fields(kind, request_info.subresource, old, new)
    if has_managed_fields:
        new["metadata"] = {**new["metadata"], "managedFields": managed_fields}
    request = AdmissionRequest(context, request_info, new, old)
    run_phase("resolve", "UPDATE", request)
    strategy = context.registry.strategy(kind)
    strategy.apply_defaults(new)
    strategy.prepare_for_update(new, old, context.now_timestamp())
    _drop_disabled_fields(context, request_info, new, old)
    if not has_managed_fields:
        record_field_ownership(context, request_info, old, new)
    run_phase("mutate", "UPDATE", request)
    _bump_generation(request_info, old, new)
    _validate(request, "UPDATE")
    if new == old:
        # An empty commit returns when all earlier writes are durable: the reply shows one of them.
        await context.store.commit(())
        return _reply(200, serialize_stored(request_info.kind, record.value), request_info)
    if request_info.dry_run:
        _accounting_writes(context, request_info, "UPDATE", old=old, new=new)
        return _reply(200, serialize_object(request_info.kind, new), request_info)
    if is_deletable(kind, new):
        last = await remove_object(context, request_info, record, old=old, last=new)
        await finish_definition_deletion(context, kind)
        return _reply(200, serialize_object(request_info.kind, last), request_info)
    written = await store_object(context, request_info, record.key, new, record=record, old=old)
    return _reply(200, serialize_stored(request_info.kind, written.value), request_info)


def _drop_disabled_fields(
    context: ServerContext, request_info: RequestInfo, new: Object, old: Object | None
) -> None:
    """Drop fields of disabled features, whether the client, a default or admission set them."""
    kind = request_info.stored_kind
    if not kind.is_custom:
        found = drop_disabled(context.gates, kind.schema, new, old)
        request_info.warnings.extend(text for text in found if text not in request_info.warnings)
        drop_stale_workload_annotations(kind.schema, new)


def _validate(request: AdmissionRequest, operation: Operation) -> None:
    """Refuse an object that breaks a rule or a limit; collect warnings for the client.

    The rules check the stored version, some of them only for objects of one served version. Causes
    name the fields of the version that the client sent.
    """
    context, request_info, new, old = (
        request.context,
        request.request_info,
        request.object,
        request.old,
    )
    kind = request_info.stored_kind
    causes = list(
        context.registry.strategy(request_info.kind).validate(new, old, request_info.subresource)
    )
    causes += check_gated_rules(context.gates, kind, new, old)
    raise_if_invalid(
        kind, new["metadata"].get("name", ""), causes_in_version(request_info.kind, causes)
    )
    run_phase("validate", operation, request)
    check_write_restrictions(context, request_info, new, old)
    request_info.warnings.extend(context.registry.strategy(kind).warnings(new, old))


async def store_object(
    context: ServerContext,
    request_info: RequestInfo,
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
    writes += _accounting_writes(context, request_info, operation, old=old, new=obj)
    try:
        with context.meter.stage("commit"):
            change, *_ = await context.store.commit(writes)
    except RevisionConflict as error:
        raise modified_error(request_info.stored_kind, obj["metadata"]["name"]) from error
    assert change.after is not None
    return change.after


async def remove_object(
    context: ServerContext,
    request_info: RequestInfo,
    record: KeyValue,
    *,
    old: Object,
    last: Object,
    extra_writes: Sequence[StoreWrite] = (),
) -> Object:
    """Remove an object from the store; return `last`, its last state, with the final revision."""
    writes = [StoreWrite(record.key, None, record.revision), *extra_writes]
    writes += _accounting_writes(context, request_info, "DELETE", old=old, new={})
    try:
        change, *_ = await context.store.commit(writes)
    except RevisionConflict as error:
        raise modified_error(request_info.stored_kind, last["metadata"]["name"]) from error
    last["metadata"]["resourceVersion"] = str(change.revision)
    return last


def _accounting_writes(
    context: ServerContext,
    request_info: RequestInfo,
    operation: Operation,
    *,
    old: Object | None,
    new: Object,
) -> list[StoreWrite]:
    """The writes that update quotas and node allocations; raises if a quota is exceeded."""
    request = AdmissionRequest(context, request_info, new, old)
    run_phase("charge", operation, request)
    if request_info.kind is POD:
        allocations = [(pod_allocation(old), pod_allocation(new))]
        return request.writes + allocation_writes(context.store, allocations)
    if request_info.kind is RESOURCE_CLAIM:
        named = owner_status_writes(context.store, new) if operation == "CREATE" else []
        return request.writes + named + device_writes(context.store, old, new)
    return request.writes


def is_deletable(kind: Kind, obj: Object) -> bool:
    """Whether an object is being deleted and neither finalizers nor a grace period remain."""
    meta = obj["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers"):
        return False
    if kind is NAMESPACE:
        return not obj.get("spec", {}).get("finalizers")
    return not meta.get("deletionGracePeriodSeconds")


def _init_metadata(context: ServerContext, request_info: RequestInfo, meta: Object) -> None:
    """Set the metadata that the server owns in a new object, whatever the client sent."""
    for key in SERVER_MANAGED_METADATA:
        # Kubernetes keeps the generation that a client gives to a kind that has none.
        if key != "generation" or request_info.kind.generation:
            meta.pop(key, None)
    if not meta.get("name") and (prefix := meta.get("generateName")):
        meta["name"] = _generate_name(context, request_info, prefix)
    if request_info.kind.namespaced:
        meta["namespace"] = request_info.namespace
    else:
        meta.pop("namespace", None)
    meta["uid"] = context.random.uid()
    meta["creationTimestamp"] = context.now_timestamp()
    if request_info.kind.generation:
        meta["generation"] = 1


def _generate_name(context: ServerContext, request_info: RequestInfo, prefix: str) -> str:
    for _ in range(_NAME_GENERATION_ATTEMPTS):
        name = prefix[:_MAX_GENERATE_NAME_LENGTH] + context.random.suffix(_GENERATED_SUFFIX_LENGTH)
        if context.store.pending(request_info.kind.store_key(request_info.namespace, name)) is None:
            break
    return name


def _check_name_and_namespace(request_info: RequestInfo, obj: Object) -> None:
    """Refuse a body whose name or namespace differs from the request path."""
    meta = obj.setdefault("metadata", {})
    if (
        request_info.kind.namespaced
        and meta.get("namespace", request_info.namespace) != request_info.namespace
    ):
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    name = meta.get("name", "")
    if request_info.name and name != request_info.name:
        raise BadRequest(
            f"the name of the object ({name}) does not match the name on the URL "
            f"({request_info.name})"
        )


def _check_preconditions(
    request_info: RequestInfo, old: Object, new: Object, *, is_patch: bool
) -> None:
    """Check optimistic concurrency: uid and resourceVersion must be those of the stored object."""
    kind, meta = request_info.kind, new["metadata"]
    version = meta.get("resourceVersion", "")
    if version in ("", "0") and not kind.update_without_version and not is_patch:
        detail = "Invalid value: 0: must be specified for an update"
        cause = Cause("metadata.resourceVersion", "FieldValueInvalid", detail)
        raise Invalid(
            f'{kind.resource} "{request_info.name}" is invalid: {cause}',
            name=request_info.name,
            group=kind.group,
            kind=kind.plural,
            causes=[cause],
        )
    if version == "0":
        version = ""  # the same as none
    if version and not version.isdecimal():
        raise BadRequest(f'strconv.ParseUint: parsing "{version}": invalid syntax')
    if not is_patch and meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
        detail = (
            f"Precondition failed: UID in precondition: {meta['uid']}, "
            f"UID in object meta: {old['metadata']['uid']}"
        )
        raise conflict_error(kind, request_info.name, detail)
    if version and version != old["metadata"]["resourceVersion"]:
        raise modified_error(kind, request_info.name)


def record_field_ownership(
    context: ServerContext, request_info: RequestInfo, old: Object | None, new: Object
) -> None:
    """Update managedFields: the writer owns the fields that it added or changed."""
    kind, agent = request_info.stored_kind, request_info.request.headers.get("user-agent", "")
    manager = request_info.query.get("fieldManager") or agent.partition("/")[0] or "unknown"
    writer = FieldManager(
        manager[:_MAX_FIELD_MANAGER_LENGTH], kind.api_version, request_info.subresource
    )
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


def _bump_generation(request_info: RequestInfo, old: Object, new: Object) -> None:
    """Increase the generation if the spec changed; of custom resources, anything but metadata."""
    kind = request_info.stored_kind
    fields: Sequence[str] = kind.generation_fields
    if kind.is_custom:
        fields = [
            key for key in {**old, **new} if key not in ("metadata", request_info.subresource)
        ]
    if kind.generation and any(new.get(field) != old.get(field) for field in fields):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _force_forbidden() -> ApiError:
    cause = Cause(
        "force", "FieldValueForbidden", "Forbidden: may not be specified for non-apply patch"
    )
    return invalid_options("PatchOptions", [cause])


def _reply(code: int, body: bytes, request_info: RequestInfo) -> Reply:
    return Reply(code, body, headers=request_info.warning_headers())
