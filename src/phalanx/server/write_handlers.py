"""Create, update and patch: once, for every kind.

    body ─▶ conform ─▶ defaults ─▶ admission ─▶ rules ─▶ one transaction ─▶ reply

Nothing is awaited between the read of the old object and the commit, so that a write meets the very
state that it was checked against.
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
from phalanx.api.kinds import NAMESPACE, POD, RESOURCE_QUOTA, Kind
from phalanx.api.patch import PatchFailed, TooManyOperations, affected_fields, apply_patch
from phalanx.api.validation.registry import check_gated_rules
from phalanx.api.validation.stale_annotations import drop_stale_workload_annotations
from phalanx.api.wire import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object, Reply
from phalanx.server import admission
from phalanx.server.admission import check_limits, fill_from_template
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
from phalanx.server.request_info import RequestInfo
from phalanx.server.resource_quotas import quota_writes, recompute_status
from phalanx.server.security.write_restrictions import check_write_restrictions
from phalanx.server.serialization import encode_reply, load_body, media_type, negotiate
from phalanx.server.subresource_strategy import SERVER_MANAGED_METADATA, restore_immutable_fields
from phalanx.store.kv import KeyValue, RevisionConflict, StoreWrite

#: Given the stored object (to be changed in place or not), the wanted one.
Mutation = Callable[[Object], Object]

_GENERATED_SUFFIX_LENGTH = 5
_NAME_GENERATION_ATTEMPTS = 8
_MAX_GENERATE_NAME_LENGTH = 58
_MAX_FIELD_MANAGER_LENGTH = 128
_NATIVE_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
_PATCH_TYPES = (*_NATIVE_PATCH_TYPES, APPLY_PATCH)
#: Objects of kinds that users define have no merge keys to go by.
_CUSTOM_RESOURCE_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)


async def create(context: ServerContext, call: RequestInfo) -> Reply:
    """A new object."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    twin = context.admission_cache.parse_request(call)
    obj = (
        context.admission_cache.instantiate(twin, context.random, context.now_timestamp())
        if twin
        else None
    )
    if obj is None:
        with context.meter.stage("parse"):
            obj = read_object(context, call)
        _check_name_and_namespace(call, obj)
        obj = convert_to_stored(call, obj)
        _admit_new(context, call, obj)
        if twin:
            context.admission_cache.remember(twin, call, obj)
    return encode_reply(await _store_new(context, call, obj), accepted)


async def insert(
    context: ServerContext, call: RequestInfo, obj: Object, *, has_managed_fields: bool = False
) -> Reply:
    """Take a conforming object through admission and rules into the store.

    `is_owned` says that its managedFields are there already: somebody applied it.
    """
    _admit_new(context, call, obj, has_managed_fields=has_managed_fields)
    return await _store_new(context, call, obj)


def _admit_new(
    context: ServerContext, call: RequestInfo, obj: Object, *, has_managed_fields: bool = False
) -> None:
    """Complete a conforming object in place, or refuse it."""
    kind, meta = call.stored_kind, obj["metadata"]
    if meta.get("resourceVersion"):
        raise BadRequest("resourceVersion should not be set on objects to be created")
    model = context.registry.model(kind)
    check_not_terminating(context, call.kind)
    _init_metadata(context, call, meta)
    with context.meter.stage("admit"):
        _resolve_template(context, call, obj, None)
        model.apply_defaults(obj)
        _drop_disabled_fields(context, call, obj, None)
        if not has_managed_fields:
            record_field_ownership(context, call, None, obj)
        admission.admit(context, call, obj)
        _drop_disabled_fields(context, call, obj, None)
        model.prepare_for_create(obj, context.now_timestamp())
        _validate(context, call, obj, None)


async def _store_new(context: ServerContext, call: RequestInfo, obj: Object) -> Reply:
    """Store an object that was admitted, if there is none of its name and quotas allow it."""
    kind, meta = call.stored_kind, obj["metadata"]
    key = kind.store_key(call.namespace, meta["name"])
    if taken := context.store.pending(key):
        # Whoever is told that it is there must find it there.
        await context.store.commit(())
        deleting = bool(decode_record(taken)["metadata"].get("deletionTimestamp"))
        raise already_exists_error(
            kind, meta["name"], being_deleted=deleting,
            is_generated=bool(meta.get("generateName")),
        )  # fmt: skip
    if call.dry_run:
        _accounting_writes(context, kind, None, obj)
        return _reply(201, serialize_object(call.kind, obj), call)
    record = await store_object(context, kind, key, obj, None, None)
    return _reply(201, serialize_stored(call.kind, record.value), call)


async def update(context: ServerContext, call: RequestInfo) -> Reply:
    """An object in place of another, or of none where the kind allows that."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    obj = read_object(context, call)
    _check_name_and_namespace(call, obj)
    if context.store.pending(call.key) is None and call.kind.create_on_update:
        return encode_reply(await insert(context, call, convert_to_stored(call, obj)), accepted)

    def replaced(old: Object) -> Object:
        return convert_to_stored(call, obj, partial(replacement_to_hub, old))

    return encode_reply(await modify(context, call, replaced), accepted)


async def patch(context: ServerContext, call: RequestInfo) -> Reply:
    """A change of an object."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    kind = media_type(call.request)
    known = _PATCH_TYPES if not call.kind.is_custom else _CUSTOM_RESOURCE_PATCH_TYPES
    if kind not in known:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(known)
        )
    if "force" in call.query:
        raise _force_forbidden()
    wanted = rename_fields(call, kind, load_body(call.request, (kind,)))

    def patched(old: Object) -> Object:
        return _apply_patch_to(context, call, kind, old, wanted)

    return encode_reply(await modify(context, call, patched, is_patch=True), accepted)


def _apply_patch_to(
    context: ServerContext, call: RequestInfo, kind: str, old: Object, wanted: ResolvedRequest
) -> Object:
    served = from_hub(call.kind, old)
    whole = {"apiVersion": call.kind.api_version, "kind": call.kind.name, **served}
    try:
        new = apply_patch(kind, context.registry.model(call.kind).schema, whole, wanted.value)
    except TooManyOperations as error:
        raise TooLarge(str(error)) from error
    except PatchFailed as error:
        raise Invalid("the server rejected our request due to an error in our request") from error
    annotate(new, wanted.annotations)
    check_kind(call.kind, new)
    new.pop("apiVersion", None)
    new.pop("kind", None)
    _conform_patched_fields(context, call, new, affected_fields(kind, new, wanted.value))
    _check_name_and_namespace(call, new)
    return convert_to_stored(call, new, partial(replacement_to_hub, old))


def _conform_patched_fields(
    context: ServerContext, call: RequestInfo, new: Object, fields: Collection[str]
) -> None:
    """Prune and check what a patch may have changed; what is stored conforms.

    Only of a kind that users define may the schema be another since.
    """
    if call.kind.is_custom:
        return conform_object(context, call, new)
    part = {field: new.pop(field) for field in fields}
    conform_object(context, call, part)
    new.update(part)
    return None


async def modify(
    context: ServerContext,
    call: RequestInfo,
    mutate: Mutation,
    *,
    is_patch: bool = False,
    has_managed_fields: bool = False,
) -> Reply:
    """Check a wish against the stored object and put it in its place."""
    kind, record = call.stored_kind, context.store.pending(call.key)
    if record is None:
        raise not_found_error(call.kind, call.name)
    old = decode_record(record)
    new = mutate(decode_record(record))
    _check_preconditions(call, old, new, is_patch=is_patch)
    restore_immutable_fields(kind, call.subresource, old, new)
    _resolve_template(context, call, new, old)
    context.registry.model(kind).apply_defaults(new)
    _drop_disabled_fields(context, call, new, old)
    if not has_managed_fields:
        record_field_ownership(context, call, old, new)
    _bump_generation(call, old, new)
    _validate(context, call, new, old)
    if new == old:
        await context.store.commit(())
        return _reply(200, serialize_stored(call.kind, record.value), call)
    if call.dry_run:
        _accounting_writes(context, kind, old, new)
        return _reply(200, serialize_object(call.kind, new), call)
    if is_deletable(kind, new):
        last = await remove_object(context, kind, record, old, new)
        await finish_definition_deletion(context, kind)
        return _reply(200, serialize_object(call.kind, last), call)
    written = await store_object(context, kind, call.key, new, record, old)
    return _reply(200, serialize_stored(call.kind, written.value), call)


def _resolve_template(
    context: ServerContext, call: RequestInfo, new: Object, old: Object | None
) -> None:
    """Add what an object may leave to another one that it refers to."""
    causes = fill_from_template(context, call, new, old)
    raise_if_invalid(
        call.kind, new["metadata"].get("name", ""), causes_in_version(call.kind, causes)
    )


def _drop_disabled_fields(
    context: ServerContext, call: RequestInfo, new: Object, old: Object | None
) -> None:
    """Leave out what is switched off, whether its writer said it, a default or admission."""
    kind = call.stored_kind
    if not kind.is_custom:
        call.warnings.extend(drop_disabled(context.gates, kind.schema, new, old))
        drop_stale_workload_annotations(kind.schema, new)


def _validate(context: ServerContext, call: RequestInfo, new: Object, old: Object | None) -> None:
    """Refuse what breaks a rule or a limit; tell of what is taken all the same.

    What is judged is the stored form, but some rules are only for one of the forms it comes in, and
    that is the one that its client is told of.
    """
    kind = call.stored_kind
    faults = list(context.registry.model(call.kind).validate(new, old, call.subresource))
    faults += check_gated_rules(context.gates, kind, new, old)
    raise_if_invalid(kind, new["metadata"].get("name", ""), causes_in_version(call.kind, faults))
    check_limits(context, call, new, old)
    check_write_restrictions(context, call, new, old)
    if kind is RESOURCE_QUOTA:
        recompute_status(context, old, new)
    call.warnings.extend(context.registry.model(kind).warnings(new, old))


async def store_object(
    context: ServerContext,
    kind: Kind,
    key: str,
    obj: Object,
    record: KeyValue | None,
    old: Object | None,
    extra_writes: Sequence[StoreWrite] = (),
) -> KeyValue:
    """One transaction: the object in place of an old one, the accounts, and what else."""
    writes = [StoreWrite(key, encoder(obj), record.revision if record else 0), *extra_writes]
    writes += _accounting_writes(context, kind, old, obj)
    try:
        with context.meter.stage("commit"):
            change, *_ = await context.store.commit(writes)
    except RevisionConflict as error:
        raise modified_error(kind, obj["metadata"]["name"]) from error
    assert change.after is not None
    return change.after


async def remove_object(
    context: ServerContext,
    kind: Kind,
    record: KeyValue,
    old: Object,
    last: Object,
    extra_writes: Sequence[StoreWrite] = (),
) -> Object:
    """Delete an object for good; its last state."""
    writes = [StoreWrite(record.key, None, record.revision), *extra_writes]
    writes += _accounting_writes(context, kind, old, None)
    try:
        change, *_ = await context.store.commit(writes)
    except RevisionConflict as error:
        raise modified_error(kind, last["metadata"]["name"]) from error
    last["metadata"]["resourceVersion"] = str(change.revision)
    return last


def _accounting_writes(
    context: ServerContext, kind: Kind, old: Object | None, new: Object | None
) -> list[StoreWrite]:
    """What an object takes of its node and of the quotas of its namespace, brought up to date."""
    writes = quota_writes(context, kind, old, new)
    if kind is POD:
        writes += allocation_writes(context.store, [(pod_allocation(old), pod_allocation(new))])
    return writes


def is_deletable(kind: Kind, obj: Object) -> bool:
    """Whether an object that is being deleted has nothing left to wait for."""
    meta = obj["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers"):
        return False
    if kind is NAMESPACE:
        return not obj.get("spec", {}).get("finalizers")
    return not meta.get("deletionGracePeriodSeconds")


def _init_metadata(context: ServerContext, call: RequestInfo, meta: Object) -> None:
    """The metadata of a new object; what only the server may say is said anew."""
    for key in (*SERVER_MANAGED_METADATA[2:], "resourceVersion"):
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
    """The name and namespace in a body must be those of the path, where that has them."""
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
    kind, meta = call.kind, new["metadata"]
    version = meta.get("resourceVersion", "")
    if not version and not kind.update_without_version and not is_patch:
        cause = Cause("metadata.resourceVersion", "FieldValueInvalid",
                      "Invalid value: 0: must be specified for an update")  # fmt: skip
        raise Invalid(
            f'{kind.resource} "{call.name}" is invalid: {cause}',
            name=call.name, group=kind.group, kind=kind.plural, causes=[cause],
        )  # fmt: skip
    if version and not version.isdecimal():
        raise BadRequest(f'strconv.ParseUint: parsing "{version}": invalid syntax')
    if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
        raise conflict_error(kind, call.name, (
            f"Precondition failed: UID in precondition: {meta['uid']}, "
            f"UID in object meta: {old['metadata']['uid']}"
        ))  # fmt: skip
    if version and version != old["metadata"]["resourceVersion"]:
        raise modified_error(kind, call.name)


def record_field_ownership(
    context: ServerContext, call: RequestInfo, old: Object | None, new: Object
) -> None:
    """Note who said what: what a writer added or changed is its own from now on."""
    kind, agent = call.stored_kind, call.request.headers.get("user-agent", "")
    manager = call.query.get("fieldManager") or agent.partition("/")[0] or "unknown"
    writer = FieldManager(manager[:_MAX_FIELD_MANAGER_LENGTH], kind.api_version, call.subresource)
    # What a new object says of its own status is not kept, so nobody can own it.
    said = new
    if old is None and "status" in kind.subresources:
        said = {key: value for key, value in new.items() if key != "status"}
    model = context.registry.model(kind)
    if not model.matches_structure(said):
        return
    if old is not None and not model.matches_structure(old):
        old = None  # its schema has changed since: whoever writes it now owns all of it
    fields = update_managed_fields(model.schema, old, said, writer, context.now_timestamp())
    if fields:
        new["metadata"]["managedFields"] = fields
    else:
        new["metadata"].pop("managedFields", None)


def _bump_generation(call: RequestInfo, old: Object, new: Object) -> None:
    """One more for another spec; of a kind that users define, for anything but metadata."""
    kind, fields = call.stored_kind, ["spec"] if "spec" in old else []
    if kind.is_custom:
        fields = [key for key in {**old, **new} if key not in ("metadata", call.subresource)]
    if kind.generation and any(new.get(field) != old.get(field) for field in fields):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _force_forbidden() -> ApiError:
    cause = Cause(
        "force", "FieldValueForbidden", "Forbidden: may not be specified for non-apply patch"
    )
    return Invalid(
        f'PatchOptions.meta.k8s.io "" is invalid: {cause}',
        group="meta.k8s.io", kind="PatchOptions", causes=[cause],
    )  # fmt: skip


def _reply(code: int, body: bytes, call: RequestInfo) -> Reply:
    return Reply(code, body, headers=call.warning_headers())
