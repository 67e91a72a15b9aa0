"""The steps between the body of a write and its commit: defaults, metadata, admission, validation.

    new object      prepare_new ─▶ complete_new ─▶ stored
    changed object  prepare_update ─▶ bump_generation, validate_object ─▶ stored
                                   └─▶ webhooks and policies may change the object here

Nothing here waits: between both steps, and after the last, the handlers may await hooks.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.api.conversion.hub import causes_in_version
from phalanx.api.errors import BadRequest, Cause, Invalid
from phalanx.api.feature_gates import drop_disabled
from phalanx.api.field_management.managed_fields import FieldManager, update_managed_fields
from phalanx.api.validation.pod_template import drop_stale_workload_annotations
from phalanx.api.validation.registry import check_gated_rules
from phalanx.api.wire import Object
from phalanx.server.admission import AdmissionRequest, Operation, run_phase
from phalanx.server.context import ServerContext
from phalanx.server.custom_resources import check_not_terminating
from phalanx.server.objects import conflict_error, modified_error, raise_if_invalid
from phalanx.server.request_bodies import SERVER_MANAGED_METADATA, restore_immutable_fields
from phalanx.server.request_info import RequestInfo
from phalanx.server.security.write_restrictions import check_write_restrictions

_GENERATED_SUFFIX_LENGTH = 5
_NAME_GENERATION_ATTEMPTS = 8
_MAX_GENERATE_NAME_LENGTH = 58
_MAX_FIELD_MANAGER_LENGTH = 128


def prepare_new(
    context: ServerContext, request_info: RequestInfo, obj: Object, *, has_managed_fields: bool
) -> AdmissionRequest:
    """Apply what Kubernetes does to a new object before its validation."""
    kind, meta = request_info.stored_kind, obj["metadata"]
    if meta.get("resourceVersion"):
        raise BadRequest("resourceVersion should not be set on objects to be created")
    strategy = context.registry.strategy(kind)
    check_not_terminating(context, request_info.kind)
    _init_metadata(context, request_info, meta)
    request = AdmissionRequest(context, request_info, obj)
    run_phase("resolve", "CREATE", request)
    strategy.apply_defaults(obj)
    drop_disabled_fields(request)
    if not has_managed_fields:
        record_field_ownership(request)
    run_phase("mutate", "CREATE", request)
    return request


def complete_new(request: AdmissionRequest) -> None:
    """Set the initial state of a new object and validate it."""
    context, request_info, obj = request.context, request.request_info, request.object
    drop_disabled_fields(request)
    strategy = context.registry.strategy(request_info.stored_kind)
    strategy.prepare_for_create(obj, context.now_timestamp())
    validate_object(request, "CREATE")


def prepare_update(
    context: ServerContext,
    request_info: RequestInfo,
    *,
    old: Object,
    new: Object,
    is_patch: bool,
    has_managed_fields: bool,
) -> AdmissionRequest:
    """Apply what Kubernetes does to a changed object before its validation."""
    kind = request_info.stored_kind
    _check_preconditions(request_info, old, new, is_patch=is_patch)
    computed = new["metadata"].get("managedFields") if has_managed_fields else None
    restore_immutable_fields(kind, request_info.subresource, old=old, new=new)
    if has_managed_fields:
        new["metadata"] = {**new["metadata"], "managedFields": computed}
    request = AdmissionRequest(context, request_info, new, old)
    run_phase("resolve", "UPDATE", request)
    strategy = context.registry.strategy(kind)
    strategy.apply_defaults(new)
    strategy.prepare_for_update(new, old, context.now_timestamp())
    drop_disabled_fields(request)
    if not has_managed_fields:
        record_field_ownership(request)
    run_phase("mutate", "UPDATE", request)
    return request


def drop_disabled_fields(request: AdmissionRequest) -> None:
    """Drop fields of disabled features, whether the client, a default or admission set them."""
    request_info = request.request_info
    kind, obj = request_info.stored_kind, request.object
    if not kind.is_custom:
        warnings = request_info.warnings
        for text in drop_disabled(request.context.gates, kind.schema, obj, old=request.old):
            if text not in warnings:
                warnings.append(text)
        drop_stale_workload_annotations(kind.schema, obj)


def validate_object(request: AdmissionRequest, operation: Operation) -> None:
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
    causes += check_gated_rules(context.gates, kind, new, old=old)
    raise_if_invalid(
        kind, new["metadata"].get("name", ""), causes_in_version(request_info.kind, causes)
    )
    run_phase("validate", operation, request)
    check_write_restrictions(request)
    request_info.warnings.extend(context.registry.strategy(kind).warnings(new, old))


# ---- metadata ------------------------------------------------------------------------------------


def _init_metadata(context: ServerContext, request_info: RequestInfo, meta: Object) -> None:
    """Set the metadata that the server owns in a new object, whatever the client sent."""
    for key in SERVER_MANAGED_METADATA.intersection(meta):
        # Kubernetes keeps the generation that a client gives to a kind that has none.
        if key != "generation" or request_info.kind.generation:
            del meta[key]
    if not meta.get("name") and (prefix := meta.get("generateName")):
        meta["name"] = generate_name(context, request_info, prefix)
    if request_info.kind.namespaced:
        meta["namespace"] = request_info.namespace
    else:
        meta.pop("namespace", None)
    meta["uid"] = context.random.uid()
    meta["creationTimestamp"] = context.now_timestamp()
    if request_info.kind.generation:
        meta["generation"] = 1


def generate_name(context: ServerContext, request_info: RequestInfo, prefix: str) -> str:
    """Return a name with a prefix that no object has, unless several attempts find a taken one."""
    for _ in range(_NAME_GENERATION_ATTEMPTS):
        name = prefix[:_MAX_GENERATE_NAME_LENGTH] + context.random.suffix(_GENERATED_SUFFIX_LENGTH)
        if context.store.pending(request_info.kind.store_key(request_info.namespace, name)) is None:
            break
    return name


def check_name_and_namespace(request_info: RequestInfo, obj: Object) -> None:
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


def record_field_ownership(request: AdmissionRequest) -> None:
    """Update managedFields: the writer owns the fields that it added or changed."""
    context, request_info = request.context, request.request_info
    new, old = request.object, request.old
    if not context.keeps_history:
        return
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
    fields = update_managed_fields(
        strategy.schema, old, written, manager=writer, now=context.now_timestamp()
    )
    if fields:
        new["metadata"]["managedFields"] = fields
    else:
        new["metadata"].pop("managedFields", None)


def bump_generation(request_info: RequestInfo, old: Object, new: Object) -> None:
    """Increase the generation if the spec changed; of custom resources, anything but metadata."""
    kind = request_info.stored_kind
    fields: Sequence[str] = kind.generation_fields
    if kind.is_custom:
        fields = [
            key for key in {**old, **new} if key not in ("metadata", request_info.subresource)
        ]
    if kind.generation and any(new.get(field) != old.get(field) for field in fields):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
