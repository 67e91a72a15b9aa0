"""Server-side apply: a client states what it wants and owns that; others own the rest.

    configuration ─▶ conform, strictly ─▶ merge with the live object ─▶ the way of any write
                                              └─▶ conflict with another owner, unless forced

The merging and the ownership are `api.ownership`'s; here is what HTTP adds.
"""

from __future__ import annotations

from functools import partial

from phalanx.api.causes import required
from phalanx.api.errors import BadRequest, Conflict
from phalanx.api.owning.ownership import Conflicts, Unmergeable, Writer, apply
from phalanx.api.versions.conversion import config_to_hub, path_in
from phalanx.api.wire import APPLY_PATCH, Object, Reply
from phalanx.server.bodies import check_kind, conformed, in_stored_form, in_stored_names
from phalanx.server.call import Call, bad_options
from phalanx.server.context import Context
from phalanx.server.formats import load
from phalanx.server.negotiation import in_media, negotiate
from phalanx.server.objects import conflict, decoded
from phalanx.server.writing import insert, modify


async def apply_configuration(context: Context, call: Call) -> Reply:
    """Apply a configuration to an object, or make one of it."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    manager = call.query.get("fieldManager", "")
    if not manager:
        cause = required("fieldManager", "is required for apply patch")
        raise bad_options("PatchOptions", [cause])
    config = _configuration(context, call)
    record = context.store.pending(call.key)
    live = decoded(record) if record else None
    if live is not None and not context.registry.model(call.stored).fits(live):
        detail = "the stored object does not fit its schema any more; replace it by an update"
        raise conflict(call.kind, call.name, detail)
    applied = _applied(context, call, live, config, manager)
    if live is None:
        reply = await insert(context, call, applied, is_owned=True)
    else:
        reply = await modify(context, call, lambda old: applied, is_patch=True, is_owned=True)
    return in_media(reply, accepted)


def _configuration(context: Context, call: Call) -> Object:
    """What the client wants, whole and of the right kind; nothing in it is dropped in silence.

    It is merged and owned in the form that is stored.
    """
    config = load(call.request, (APPLY_PATCH,))
    if not isinstance(config, dict):
        raise BadRequest("a configuration must be an object")
    if not config.get("kind") or not config.get("apiVersion"):
        raise BadRequest(f"invalid object type: /, Kind={config.get('kind', '')}")
    check_kind(call.kind, config)
    body = {key: value for key, value in config.items() if key not in ("apiVersion", "kind")}
    in_stored_names(call, APPLY_PATCH, body)
    conformed(context, call, body, strict=True)
    if not context.registry.model(call.kind).fits(body):
        raise BadRequest("a configuration must have objects and lists where its schema has them")
    meta = body.setdefault("metadata", {})
    _check_identity(call, meta)
    return in_stored_form(call, _part(call, body), config_to_hub)


def _part(call: Call, body: Object) -> Object:
    """The part of a configuration that this part of the resource is for."""
    if call.subresource:
        return {key: value for key, value in body.items() if key in ("metadata", call.subresource)}
    if "status" in call.kind.subresources:
        body.pop("status", None)
    return body


def _check_identity(call: Call, meta: Object) -> None:
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


def _applied(
    context: Context, call: Call, live: Object | None, config: Object, manager: str
) -> Object:
    writer = Writer(manager, call.stored.api_version, call.subresource)
    schema = context.registry.model(call.stored).schema
    force = call.query.get("force", "false") in ("true", "1")
    result = apply(schema, live, config, writer, context.stamp(), force=force)
    match result:
        case Conflicts():
            told = result.told(partial(path_in, call.kind))
            raise Conflict(told.message, causes=told.causes)
        case Unmergeable():
            raise BadRequest(result.message)
    return result.object
