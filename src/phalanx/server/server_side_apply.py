"""Server-side apply: a client states the fields that it wants and becomes their manager.

    configuration ─▶ normalize, strictly ─▶ merge with the live object ─▶ insert or modify
                                              └─▶ 409: another manager owns a field (unless forced)

`api.field_management` merges and tracks ownership; this module adds the HTTP part.
"""

from __future__ import annotations

from functools import partial

from phalanx.api.conversion.hub import CONVERSIONS, config_to_hub, field_path_in_version
from phalanx.api.errors import BadRequest, Conflict, required
from phalanx.api.field_management.managed_fields import (
    ApplyConflicts,
    FieldManager,
    Unmergeable,
    server_side_apply,
)
from phalanx.api.wire import APPLY_PATCH, Object, Reply
from phalanx.server.context import ServerContext
from phalanx.server.converted_store import ConvertedStore
from phalanx.server.objects import conflict_error, decode_record, not_found_error
from phalanx.server.request_bodies import (
    check_kind,
    check_value_count,
    convert_to_stored,
    normalize_object,
    rename_fields,
    yield_if_large,
)
from phalanx.server.request_info import RequestInfo, invalid_options
from phalanx.server.serialization import encode_reply, load_body, negotiate
from phalanx.server.write_handlers import insert, modify
from phalanx.store.kv import KeyValue

#: Merges of a large configuration, if the object changes between merging and writing.
_MAX_ATTEMPTS = 5


async def apply_configuration(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle an apply patch: change an object, or create it."""
    accepted = negotiate(request_info.request)
    request_info.check_dry_run()
    request_info.field_validation()
    manager = request_info.query.get("fieldManager", "")
    if not manager:
        cause = required("fieldManager", "is required for apply patch")
        raise invalid_options("PatchOptions", [cause])
    config = _read_configuration(context, request_info)
    await yield_if_large(request_info)
    for _ in range(_MAX_ATTEMPTS):
        record = context.store.pending(request_info.key)
        live = decode_record(record) if record else None
        applied = _merge_configuration(context, request_info, live, config=config, manager=manager)
        check_value_count(request_info.kind, applied)
        await yield_if_large(request_info)
        # Other requests may have run meanwhile: the result must be of the present object.
        if context.store.pending(request_info.key) == record:
            break
    if record is not None and isinstance(context.store, ConvertedStore):
        await _check_foreign_owners(context.store, request_info, record, applied=applied)
    if live is None:
        _check_creatable(request_info, applied["metadata"])
        reply = await insert(context, request_info, applied, has_managed_fields=True)
    else:

        def merge(old: Object) -> Object:
            if context.store.pending(request_info.key) == record:
                return applied
            # The object has changed while webhooks or policies reviewed the result.
            return _merge_configuration(context, request_info, old, config=config, manager=manager)

        reply = await modify(context, request_info, merge, is_patch=True, has_managed_fields=True)
    return encode_reply(reply, accepted)


async def _check_foreign_owners(
    store: ConvertedStore, request_info: RequestInfo, record: KeyValue, *, applied: Object
) -> None:
    """Refuse an apply that changes fields which others own in another version of the definition."""
    manager = FieldManager(
        request_info.query["fieldManager"],
        request_info.kind.api_version,
        request_info.subresource,
    )
    conflicts = await store.find_conflicts(record, applied, manager)
    if conflicts is not None and not _is_forced(request_info):
        raise Conflict(conflicts.message, causes=conflicts.causes)


def _is_forced(request_info: RequestInfo) -> bool:
    return request_info.query.get("force", "false") in ("true", "1")


def _read_configuration(context: ServerContext, request_info: RequestInfo) -> Object:
    """The configuration in the stored version; unknown fields are refused, never dropped.

    Merging and ownership work on the stored version.
    """
    config = load_body(request_info.request, (APPLY_PATCH,))
    if not isinstance(config, dict):
        raise BadRequest("a configuration must be an object")
    if not config.get("kind") or not config.get("apiVersion"):
        raise BadRequest(f"invalid object type: /, Kind={config.get('kind', '')}")
    check_kind(request_info.kind, config)
    body = {key: value for key, value in config.items() if key not in ("apiVersion", "kind")}
    rename_fields(request_info, APPLY_PATCH, body)
    check_value_count(request_info.kind, body)
    # Fields of an older version are converted by their values, so empty ones are dropped.
    conversion = CONVERSIONS.get(request_info.kind)
    keep_empty = conversion is None or conversion.is_identity
    normalize_object(context, request_info, body, strict=True, keep_empty=keep_empty)
    if not context.registry.strategy(request_info.kind).matches_structure(body):
        raise BadRequest("a configuration must have objects and lists where its schema has them")
    # null is a value here (`keep_empty`): metadata that is null has no name.
    body["metadata"] = body.get("metadata") or {}
    _check_identity(request_info, body["metadata"])
    return convert_to_stored(request_info, _select_subresource(request_info, body), config_to_hub)


def _select_subresource(request_info: RequestInfo, body: Object) -> Object:
    """The part of a configuration that the (sub)resource of the request covers."""
    if request_info.subresource:
        part = {key: body[key] for key in ("metadata", request_info.subresource) if key in body}
        if not request_info.kind.status_updates_metadata:
            part["metadata"] = {"name": body["metadata"]["name"]}
        return part
    if "status" in request_info.kind.subresources:
        body.pop("status", None)
    return body


def _check_identity(request_info: RequestInfo, meta: Object) -> None:
    name = meta.get("name", "")
    if not name:
        raise BadRequest(
            f"the name of the object ({request_info.name} based on URL) was undeterminable: "
            "name must be provided"
        )
    if name != request_info.name:
        raise BadRequest(
            f"the name of the object ({name}) does not match the name on the URL "
            f"({request_info.name})"
        )
    if request_info.kind.namespaced and meta.get("namespace") not in (
        None,
        "",
        request_info.namespace,
    ):
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if meta.get("managedFields") is not None:
        raise BadRequest("metadata.managedFields must be nil")


def _check_creatable(request_info: RequestInfo, meta: Object) -> None:
    """Refuse to create the object of a subresource, or one with the uid of another object."""
    if request_info.subresource:
        raise not_found_error(request_info.kind, request_info.name)
    if uid := meta.get("uid"):
        detail = (
            f"uid mismatch: the provided object specified uid {uid}, and no existing object was "
            "found"
        )
        raise conflict_error(request_info.kind, request_info.name, detail)
    meta.pop("resourceVersion", None)


def _merge_configuration(
    context: ServerContext,
    request_info: RequestInfo,
    live: Object | None,
    *,
    config: Object,
    manager: str,
) -> Object:
    if live is not None and not context.registry.strategy(
        request_info.stored_kind
    ).matches_structure(live):
        detail = "the stored object does not match its schema any more; replace it with an update"
        raise conflict_error(request_info.kind, request_info.name, detail)
    writer = FieldManager(manager, request_info.stored_kind.api_version, request_info.subresource)
    schema = context.registry.strategy(request_info.stored_kind).schema
    now, force = context.now_timestamp(), _is_forced(request_info)
    result = server_side_apply(schema, live, config, manager=writer, now=now, force=force)
    match result:
        case ApplyConflicts():
            conflicts = result.with_paths(partial(field_path_in_version, request_info.kind))
            raise Conflict(conflicts.message, causes=conflicts.causes)
        case Unmergeable():
            raise BadRequest(result.message)
    # Null and zero values have an owner, but are not stored.
    context.registry.strategy(request_info.stored_kind).normalize(result.object)
    return result.object
