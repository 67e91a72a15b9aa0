"""Create, update and patch: the same handlers for every kind.

    body ─▶ normalize ─▶ admission: resolve ─▶ defaults ─▶ admission: mutate ─▶ validation rules
         ─▶ admission: validate ─▶ admission: charge ─▶ one transaction ─▶ reply

The handlers must not await anything between reading the old object and the commit: a write is
committed against the state that it was checked against. Only webhooks and policies that an
administrator has configured are awaited (`dynamic_admission`): they see the object after
`admission: mutate` and after `admission: validate`. If the stored object has changed meanwhile, all
steps are repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

import orjson

from phalanx.api.conversion.alias_resolution import ResolvedRequest, annotate
from phalanx.api.conversion.hub import from_hub, replacement_to_hub
from phalanx.api.errors import (
    ApiError,
    BadRequest,
    Cause,
    Invalid,
    TooLarge,
    UnsupportedMediaType,
)
from phalanx.api.kinds import NAMESPACE, POD, RESOURCE_CLAIM, Kind
from phalanx.api.patch import (
    MalformedPatch,
    PatchFailed,
    TooManyOperations,
    affected_fields,
    apply_patch,
)
from phalanx.api.wire import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object, Reply
from phalanx.server.admission import AdmissionRequest, Operation, check_namespace, run_phase
from phalanx.server.admission_cache import CacheableRequest, GeneratedPod
from phalanx.server.binding import allocation_writes, pod_allocation
from phalanx.server.claim_binding import device_writes, owner_status_writes
from phalanx.server.context import ServerContext
from phalanx.server.converted_store import ConvertedStore
from phalanx.server.custom_resources import check_not_terminating, finish_definition_deletion
from phalanx.server.dynamic_admission.attributes import (
    AdmissionAttributes,
    ReviewForm,
    request_options,
)
from phalanx.server.dynamic_admission.registry import AdmissionHooks
from phalanx.server.object_preparation import (
    bump_generation,
    check_name_and_namespace,
    complete_new,
    drop_disabled_fields,
    generate_name,
    prepare_new,
    prepare_update,
    validate_object,
)
from phalanx.server.objects import (
    already_exists_error,
    decode_record,
    encoder,
    modified_error,
    not_found_error,
    serialize_object,
    serialize_stored,
)
from phalanx.server.request_bodies import (
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
from phalanx.server.service_account_admission import wait_for_default_account
from phalanx.store.kv import KeyValue, RevisionConflict, StoreWrite

#: Returns the new object, given a copy of the stored one that it may change in place.
Mutation = Callable[[Object], Object]

#: Reviews of an object by webhooks and policies, if it changes while they review it.
_MAX_REVIEWS = 5
#: Metadata of a new object that Kubernetes sets after the mutating hooks.
_METADATA_AFTER_MUTATION = ("uid", "creationTimestamp", "generation")
#: Metadata by which a patch is conditional.
_PRECONDITIONS = ("uid", "resourceVersion")
_NATIVE_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
_PATCH_TYPES = (*_NATIVE_PATCH_TYPES, APPLY_PATCH)
#: Custom resources have no merge keys for a strategic merge patch.
_CUSTOM_RESOURCE_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)


async def create(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle POST: create an object."""
    accepted = negotiate(request_info.request)
    request_info.check_dry_run()
    hooks = cacheable = obj = None
    if context.dynamic_admission.is_configured:
        hooks = context.dynamic_admission.find_hooks(request_info.kind, "", "CREATE")
    if hooks is None:
        cacheable = context.admission_cache.parse_request(request_info)
    if cacheable:
        obj = _instantiate(context, request_info, cacheable)
    if obj is None:
        with context.meter.stage("parse"):
            obj = read_object(context, request_info)
        await yield_if_large(request_info)
        check_name_and_namespace(request_info, obj)
        obj = convert_to_stored(request_info, obj)
        if request_info.kind is POD and context.admits_service_accounts:
            await wait_for_default_account(context.store, request_info.namespace, obj)
        if hooks:
            await _admit_with_hooks(context, request_info, obj, hooks=hooks)
        else:
            _admit_new(context, request_info, obj)
        if cacheable:
            context.admission_cache.remember(cacheable, request_info, obj)
    return encode_reply(await _store_new(context, request_info, obj), accepted)


def _instantiate(
    context: ServerContext, request_info: RequestInfo, cacheable: CacheableRequest
) -> Object | None:
    """Return a new object from the admission cache, if it has one for the request."""
    now = context.now_timestamp()
    obj = context.admission_cache.instantiate(cacheable, context.random, now)
    if obj is not None and isinstance(cacheable, GeneratedPod):
        meta = obj["metadata"]
        meta["name"] = generate_name(context, request_info, meta["generateName"])
        # Whether the user may block the deletion of the owner depends on the name of the owner.
        check_write_restrictions(AdmissionRequest(context, request_info, obj))
    return obj


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
    if request_info.kind is POD and context.admits_service_accounts:
        await wait_for_default_account(context.store, request_info.namespace, obj)
    hooks = context.dynamic_admission.find_hooks(request_info.kind, "", "CREATE")
    if hooks:
        await _admit_with_hooks(
            context, request_info, obj, hooks=hooks, has_managed_fields=has_managed_fields
        )
    else:
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
    with context.meter.stage("admit"):
        complete_new(prepare_new(context, request_info, obj, has_managed_fields=has_managed_fields))


async def _admit_with_hooks(
    context: ServerContext,
    request_info: RequestInfo,
    obj: Object,
    *,
    hooks: AdmissionHooks,
    has_managed_fields: bool = False,
) -> None:
    """Complete a new object in place as `_admit_new` does, and let hooks change or refuse it."""
    is_named = bool(obj["metadata"].get("name"))
    request = prepare_new(context, request_info, obj, has_managed_fields=has_managed_fields)
    meta = obj["metadata"]
    unset = {key: meta[key] for key in _METADATA_AFTER_MUTATION if key in meta}
    attributes = AdmissionAttributes(
        context,
        request_info,
        "CREATE",
        meta.get("name", "") if is_named else "",
        obj,
        options=request_options(request_info),
        dry_run=request_info.dry_run,
        unset=unset if is_named else {**unset, "name": meta.get("name", "")},
    )
    await _run_mutating_hooks(hooks, attributes)
    attributes.unset = {}
    check_name_and_namespace(request_info, obj)
    complete_new(request)
    await hooks.validate(attributes)
    # Both may have begun to be deleted while the hooks ran.
    check_not_terminating(context, request_info.kind)
    check_namespace(request)


async def _store_new(context: ServerContext, request_info: RequestInfo, obj: Object) -> Reply:
    """Store an admitted object, unless its name is taken or a quota refuses it."""
    kind, name = request_info.stored_kind, obj["metadata"]["name"]
    key = kind.store_key(request_info.namespace, name)
    if taken := context.store.pending(key):
        is_generated = bool(obj["metadata"].get("generateName"))
        # The client may read the object next: it must be committed by then.
        await context.store.commit(())
        deleting = bool(decode_record(taken)["metadata"].get("deletionTimestamp"))
        raise already_exists_error(kind, name, being_deleted=deleting, is_generated=is_generated)
    if request_info.dry_run:
        _accounting_writes(context, request_info, "CREATE", old=None, new=obj)
        return _reply(201, serialize_object(request_info.kind, obj), request_info)
    record = await store_object(context, request_info, obj, key=key)
    return _reply(201, serialize_stored(request_info.kind, record.value), request_info)


async def update(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle PUT: replace an object, or create it if its kind allows that."""
    accepted = negotiate(request_info.request)
    request_info.check_dry_run()
    obj = read_object(context, request_info)
    await yield_if_large(request_info)
    check_name_and_namespace(request_info, obj)
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
        new = apply_patch(patch_type, schema, whole, patch=changes.value)
    except TooManyOperations as error:
        raise TooLarge(str(error)) from error
    except MalformedPatch as error:
        raise BadRequest(str(error)) from error
    except PatchFailed as error:
        raise Invalid("the server rejected our request due to an error in our request") from error
    annotate(new, changes.annotations)
    check_value_count(request_info.kind, new)
    stated: Object = {key: new.pop(key) for key in ("apiVersion", "kind") if key in new}
    meta = new.get("metadata")
    if isinstance(meta, dict) and meta.get("managedFields") == []:
        # Normalization drops empty lists; this one resets managedFields too.
        meta["managedFields"] = [{}]
    fields = affected_fields(patch_type, new, changes.value)
    if _has_only_preconditions(changes.value):
        fields = [field for field in fields if field != "metadata"]
    try:
        # A strategic merge patch changes fields only: kind and version are not among them.
        if patch_type != STRATEGIC_PATCH:
            check_kind(request_info.kind, stated)
        _normalize_patched_fields(context, request_info, new, fields=fields)
    except BadRequest as error:
        cause = Cause("patch", "FieldValueInvalid", f"Invalid value: {error.message}")
        raise Invalid(f' "" is invalid: {cause}', causes=[cause]) from error
    check_name_and_namespace(request_info, new)
    return convert_to_stored(request_info, new, partial(replacement_to_hub, old))


def _has_only_preconditions(changes: object) -> bool:
    """Whether the metadata of a merge patch has nothing but valid preconditions."""
    meta = changes.get("metadata") if isinstance(changes, dict) else None
    return isinstance(meta, dict) and all(
        field in _PRECONDITIONS and isinstance(value, str) and value
        for field, value in meta.items()
    )


def _normalize_patched_fields(
    context: ServerContext, request_info: RequestInfo, new: Object, *, fields: Collection[str]
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
    review_form: ReviewForm | None = None,
) -> Reply:
    """Replace the stored object by what `mutate` makes of it, if it passes all checks.

    `mutate` is called again if the object changes while webhooks or policies review it; hooks see
    the object in `review_form`.
    """
    if context.dynamic_admission.is_configured:
        part = review_form.subresource if review_form else request_info.subresource
        if hooks := context.dynamic_admission.find_hooks(request_info.kind, part, "UPDATE"):
            review = partial(_review_update, hooks=hooks, review_form=review_form)
            return await _modify_with_hooks(
                context,
                request_info,
                mutate,
                review=review,
                is_patch=is_patch,
                has_managed_fields=has_managed_fields,
            )
    record = context.store.pending(request_info.key)
    if record is None:
        raise not_found_error(request_info.kind, request_info.name)
    old, new = decode_record(record), mutate(decode_record(record))
    request = prepare_update(
        context,
        request_info,
        old=old,
        new=new,
        is_patch=is_patch,
        has_managed_fields=has_managed_fields,
    )
    bump_generation(request_info, old, new)
    validate_object(request, "UPDATE")
    return await _store_update(request, record)


async def _modify_with_hooks(
    context: ServerContext,
    request_info: RequestInfo,
    mutate: Mutation,
    *,
    review: Callable[[AdmissionRequest, Object], Awaitable[None]],
    is_patch: bool,
    has_managed_fields: bool,
) -> Reply:
    """Modify an object as `modify` does; if it changes while hooks review it, begin again."""
    for _ in range(_MAX_REVIEWS):
        record = context.store.pending(request_info.key)
        if record is None:
            raise not_found_error(request_info.kind, request_info.name)
        # A copy, because `mutate` may return the same object each time.
        old, new = decode_record(record), _copy(mutate(decode_record(record)))
        request = prepare_update(
            context,
            request_info,
            old=old,
            new=new,
            is_patch=is_patch,
            has_managed_fields=has_managed_fields,
        )
        await review(request, old)
        if context.store.pending(request_info.key) == record:
            return await _store_update(request, record)
    raise modified_error(request_info.kind, request_info.name)


async def _review_update(
    request: AdmissionRequest,
    old: Object,
    *,
    hooks: AdmissionHooks,
    review_form: ReviewForm | None,
) -> None:
    """Let hooks change or refuse a changed object, which is completed between both."""
    context, request_info, new = request.context, request.request_info, request.object
    attributes = AdmissionAttributes(
        context,
        request_info,
        "UPDATE",
        request_info.name,
        new,
        old,
        options=request_options(request_info),
        dry_run=request_info.dry_run,
        review_form=review_form,
    )
    managed_fields = new["metadata"].get("managedFields")
    await _run_mutating_hooks(hooks, attributes)
    restore_immutable_fields(request_info.stored_kind, request_info.subresource, old=old, new=new)
    _set_managed_fields(new, managed_fields)
    strategy = context.registry.strategy(request_info.stored_kind)
    strategy.prepare_for_update(new, old, context.now_timestamp())
    drop_disabled_fields(request)
    bump_generation(request_info, old, new)
    validate_object(request, "UPDATE")
    await hooks.validate(attributes)


async def _run_mutating_hooks(hooks: AdmissionHooks, attributes: AdmissionAttributes) -> None:
    """Let hooks change an object; its managed fields stay those of the writer."""
    obj = attributes.object
    assert obj is not None
    managed_fields = obj["metadata"].get("managedFields")
    await hooks.mutate(attributes)
    check_value_count(attributes.resource_kind, obj)
    _set_managed_fields(obj, managed_fields)


def _set_managed_fields(obj: Object, managed_fields: list[Object] | None) -> None:
    if managed_fields:
        obj["metadata"] = {**obj["metadata"], "managedFields": managed_fields}
    else:
        obj["metadata"].pop("managedFields", None)


def _copy(obj: Object) -> Object:
    copied: Object = orjson.loads(orjson.dumps(obj))
    return copied


async def _store_update(request: AdmissionRequest, record: KeyValue) -> Reply:
    """Store a changed object, or remove it if its last finalizer is gone."""
    context, request_info, new = request.context, request.request_info, request.object
    old = request.old
    assert old is not None
    if new == old and not _is_outdated(context, record):
        # An empty commit returns when all earlier writes are durable: the reply shows one of them.
        await context.store.commit(())
        return _reply(200, serialize_stored(request_info.kind, record.value), request_info)
    if request_info.dry_run:
        _accounting_writes(context, request_info, "UPDATE", old=old, new=new)
        return _reply(200, serialize_object(request_info.kind, new), request_info)
    if "deletionTimestamp" in new["metadata"] and is_deletable(request_info.stored_kind, new):
        last = await remove_object(context, request_info, record, old=old, last=new)
        await finish_definition_deletion(context, request_info.stored_kind)
        return _reply(200, serialize_object(request_info.kind, last), request_info)
    written = await store_object(context, request_info, new, record=record, old=old)
    return _reply(200, serialize_stored(request_info.kind, written.value), request_info)


def _is_outdated(context: ServerContext, record: KeyValue) -> bool:
    """Whether an update must write an object in the storage version of its definition."""
    return isinstance(context.store, ConvertedStore) and context.store.is_outdated(record)


async def store_object(
    context: ServerContext,
    request_info: RequestInfo,
    obj: Object,
    *,
    key: str = "",
    record: KeyValue | None = None,
    old: Object | None = None,
    extra_writes: Sequence[StoreWrite] = (),
) -> KeyValue:
    """Commit an object, its accounting and `extra_writes` in one transaction.

    `record` and `old` are the stored object that it replaces; a new object has a `key` instead.
    """
    operation: Operation = "UPDATE" if record else "CREATE"
    if record:
        writes = [StoreWrite(record.key, encoder(obj), record.revision), *extra_writes]
    else:
        writes = [StoreWrite(key, encoder(obj), 0), *extra_writes]
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


def _force_forbidden() -> ApiError:
    cause = Cause(
        "force", "FieldValueForbidden", "Forbidden: may not be specified for non-apply patch"
    )
    return invalid_options("PatchOptions", [cause])


def _reply(code: int, body: bytes, request_info: RequestInfo) -> Reply:
    return Reply(code, body, headers=request_info.warning_headers())
