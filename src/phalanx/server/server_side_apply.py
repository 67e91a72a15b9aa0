"""Server-side apply: a client states the fields that it wants and becomes their manager.

    configuration ─▶ conform, strictly ─▶ merge with the live object ─▶ insert or modify
                                              └─▶ 409: another manager owns a field (unless forced)

`api.field_management` merges and tracks ownership; this module adds the HTTP part.
"""

from __future__ import annotations

from functools import partial

from phalanx.api.conversion.hub import config_to_hub, field_path_in_version
from phalanx.api.errors import BadRequest, Conflict
from phalanx.api.field_errors import required
from phalanx.api.field_management.managed_fields import (
    ApplyConflicts,
    FieldManager,
    Unmergeable,
    server_side_apply,
)
from phalanx.api.wire import APPLY_PATCH, Object, Reply
from phalanx.server.context import ServerContext
from phalanx.server.objects import conflict_error, decode_record
from phalanx.server.request_bodies import (
    check_kind,
    conform_object,
    convert_to_stored,
    rename_fields,
)
from phalanx.server.request_info import RequestInfo, invalid_options
from phalanx.server.serialization import encode_reply, load_body, negotiate
from phalanx.server.write_handlers import insert, modify


async def apply_configuration(context: ServerContext, call: RequestInfo) -> Reply:
    """Handle an apply patch: change an object, or create it."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    manager = call.query.get("fieldManager", "")
    if not manager:
        cause = required("fieldManager", "is required for apply patch")
        raise invalid_options("PatchOptions", [cause])
    config = _read_configuration(context, call)
    record = context.store.pending(call.key)
    live = decode_record(record) if record else None
    if live is not None and not context.registry.strategy(call.stored_kind).matches_structure(live):
        detail = "the stored object does not match its schema any more; replace it with an update"
        raise conflict_error(call.kind, call.name, detail)
    applied = _merge_configuration(context, call, live, config=config, manager=manager)
    if live is None:
        reply = await insert(context, call, applied, has_managed_fields=True)
    else:
        reply = await modify(
            context, call, lambda old: applied, is_patch=True, has_managed_fields=True
        )
    return encode_reply(reply, accepted)


def _read_configuration(context: ServerContext, call: RequestInfo) -> Object:
    """The configuration in the stored version; unknown fields are refused, never dropped.

    Merging and ownership work on the stored version.
    """
    config = load_body(call.request, (APPLY_PATCH,))
    if not isinstance(config, dict):
        raise BadRequest("a configuration must be an object")
    if not config.get("kind") or not config.get("apiVersion"):
        raise BadRequest(f"invalid object type: /, Kind={config.get('kind', '')}")
    check_kind(call.kind, config)
    body = {key: value for key, value in config.items() if key not in ("apiVersion", "kind")}
    rename_fields(call, APPLY_PATCH, body)
    conform_object(context, call, body, strict=True)
    if not context.registry.strategy(call.kind).matches_structure(body):
        raise BadRequest("a configuration must have objects and lists where its schema has them")
    meta = body.setdefault("metadata", {})
    _check_identity(call, meta)
    return convert_to_stored(call, _select_subresource(call, body), config_to_hub)


def _select_subresource(call: RequestInfo, body: Object) -> Object:
    """The part of a configuration that the (sub)resource of the request covers."""
    if call.subresource:
        return {key: value for key, value in body.items() if key in ("metadata", call.subresource)}
    if "status" in call.kind.subresources:
        body.pop("status", None)
    return body


def _check_identity(call: RequestInfo, meta: Object) -> None:
    name = meta.get("name", "")
    if not name:
        raise BadRequest(
            f"the name of the object ({call.name} based on URL) was undeterminable: name must be "
            "provided"
        )
    if name != call.name:
        raise BadRequest(
            f"the name of the object ({name}) does not match the name on the URL ({call.name})"
        )
    if meta.get("managedFields"):
        raise BadRequest("metadata.managedFields must be nil")


def _merge_configuration(
    context: ServerContext,
    call: RequestInfo,
    live: Object | None,
    *,
    config: Object,
    manager: str,
) -> Object:
    writer = FieldManager(manager, call.stored_kind.api_version, call.subresource)
    schema = context.registry.strategy(call.stored_kind).schema
    force = call.query.get("force", "false") in ("true", "1")
    result = server_side_apply(schema, live, config, writer, context.now_timestamp(), force=force)
    match result:
        case ApplyConflicts():
            conflicts = result.with_paths(partial(field_path_in_version, call.kind))
            raise Conflict(conflicts.message, causes=conflicts.causes)
        case Unmergeable():
            raise BadRequest(result.message)
    return result.object
