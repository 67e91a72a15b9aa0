"""Create, update and patch: once, for every kind.

    body ─▶ conform ─▶ defaults ─▶ admission ─▶ rules ─▶ one transaction ─▶ reply

Nothing is awaited between the read of the old object and the commit, so that a write meets the very
state that it was checked against.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from phalanx.api.errors import (
    ApiError,
    BadRequest,
    Cause,
    Invalid,
    TooLarge,
    UnsupportedMediaType,
)
from phalanx.api.gatedfields import drop_disabled
from phalanx.api.kinds import NAMESPACE, POD, RESOURCE_QUOTA, Kind
from phalanx.api.owning.ownership import Writer, after_update
from phalanx.api.patch import PatchFailed, TooManyOperations, apply_patch, touched
from phalanx.api.rules.gated import gated_faults
from phalanx.api.rules.podmarks import drop_stale_marks
from phalanx.api.versions.conversion import from_hub, replacement_to_hub, told
from phalanx.api.versions.renaming import Renamed, annotate
from phalanx.api.wire import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object, Reply
from phalanx.server import admission
from phalanx.server.bodies import (
    check_kind,
    conformed,
    in_stored_form,
    in_stored_names,
    read_object,
)
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.customresources import gone, refuse_ending
from phalanx.server.formats import load, media_type
from phalanx.server.ledger import charge, entries
from phalanx.server.limitranges import check_limits
from phalanx.server.negotiation import in_media, negotiate
from phalanx.server.objects import (
    already_exists,
    conflict,
    decoded,
    dumped,
    encoder,
    modified,
    not_found,
    presented,
    refuse,
)
from phalanx.server.parts import OURS, restore
from phalanx.server.quotas import charges, take_stock
from phalanx.server.security.restrictions import restrict
from phalanx.server.templates import complete
from phalanx.store.kv import Record, Stale, Write

#: Given the stored object (to be changed in place or not), the wanted one.
Wish = Callable[[Object], Object]

_GENERATED = 5
_ATTEMPTS = 8
_LONGEST_PREFIX = 58
_LONGEST_MANAGER = 128
_PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
_ALL_PATCHES = (*_PATCHES, APPLY_PATCH)
#: Objects of kinds that users define have no merge keys to go by.
_CUSTOM_PATCHES = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)


async def create(context: Context, call: Call) -> Reply:
    """A new object."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    twin = context.twins.find(call)
    obj = context.twins.born(twin, context.chance, context.stamp()) if twin else None
    if obj is None:
        with context.meter.stage("parse"):
            obj = read_object(context, call)
        _check_place(call, obj)
        obj = in_stored_form(call, obj)
        _admit(context, call, obj)
        if twin:
            context.twins.keep(twin, call, obj)
    return in_media(await _put_new(context, call, obj), accepted)


async def insert(context: Context, call: Call, obj: Object, *, is_owned: bool = False) -> Reply:
    """Take a conforming object through admission and rules into the store.

    `is_owned` says that its managedFields are there already: somebody applied it.
    """
    _admit(context, call, obj, is_owned=is_owned)
    return await _put_new(context, call, obj)


def _admit(context: Context, call: Call, obj: Object, *, is_owned: bool = False) -> None:
    """Complete a conforming object in place, or refuse it."""
    kind, meta = call.stored, obj["metadata"]
    if meta.get("resourceVersion"):
        raise BadRequest("resourceVersion should not be set on objects to be created")
    model = context.registry.model(kind)
    refuse_ending(context, call.kind)
    _begin(context, call, meta)
    with context.meter.stage("admit"):
        _complete(context, call, obj, None)
        model.fill(obj)
        _drop(context, call, obj, None)
        if not is_owned:
            own(context, call, None, obj)
        admission.admit(context, call, obj)
        _drop(context, call, obj, None)
        model.begin(obj, context.stamp())
        _judge(context, call, obj, None)


async def _put_new(context: Context, call: Call, obj: Object) -> Reply:
    """Store an object that was admitted, if there is none of its name and quotas allow it."""
    kind, meta = call.stored, obj["metadata"]
    key = kind.key(call.namespace, meta["name"])
    if taken := context.store.pending(key):
        # Whoever is told that it is there must find it there.
        await context.store.commit(())
        deleting = bool(decoded(taken)["metadata"].get("deletionTimestamp"))
        raise already_exists(
            kind, meta["name"], being_deleted=deleting,
            is_generated=bool(meta.get("generateName")),
        )  # fmt: skip
    if call.dry_run:
        _accounts(context, kind, None, obj)
        return _reply(201, dumped(call.kind, obj), call)
    record = await store_object(context, kind, key, obj, None, None)
    return _reply(201, presented(call.kind, record.value), call)


async def update(context: Context, call: Call) -> Reply:
    """An object in place of another, or of none where the kind allows that."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    obj = read_object(context, call)
    _check_place(call, obj)
    if context.store.pending(call.key) is None and call.kind.create_on_update:
        return in_media(await insert(context, call, in_stored_form(call, obj)), accepted)

    def replaced(old: Object) -> Object:
        return in_stored_form(call, obj, partial(replacement_to_hub, old))

    return in_media(await modify(context, call, replaced), accepted)


async def patch(context: Context, call: Call) -> Reply:
    """A change of an object."""
    accepted = negotiate(call.request)
    call.check_dry_run()
    kind = media_type(call.request)
    known = _ALL_PATCHES if not call.kind.is_custom else _CUSTOM_PATCHES
    if kind not in known:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(known)
        )
    if "force" in call.query:
        raise _bad_force()
    wanted = in_stored_names(call, kind, load(call.request, (kind,)))

    def patched(old: Object) -> Object:
        return _patched(context, call, kind, old, wanted)

    return in_media(await modify(context, call, patched, is_patch=True), accepted)


def _patched(context: Context, call: Call, kind: str, old: Object, wanted: Renamed) -> Object:
    served = from_hub(call.kind, old)
    whole = {"apiVersion": call.kind.api_version, "kind": call.kind.name, **served}
    try:
        new = apply_patch(kind, context.registry.model(call.kind).schema, whole, wanted.value)
    except TooManyOperations as error:
        raise TooLarge(str(error)) from error
    except PatchFailed as error:
        raise Invalid("the server rejected our request due to an error in our request") from error
    annotate(new, wanted.marks)
    check_kind(call.kind, new)
    new.pop("apiVersion", None)
    new.pop("kind", None)
    _conform_change(context, call, new, touched(kind, new, wanted.value))
    _check_place(call, new)
    return in_stored_form(call, new, partial(replacement_to_hub, old))


def _conform_change(context: Context, call: Call, new: Object, fields: Collection[str]) -> None:
    """Prune and check what a patch may have changed; what is stored conforms.

    Only of a kind that users define may the schema be another since.
    """
    if call.kind.is_custom:
        return conformed(context, call, new)
    part = {field: new.pop(field) for field in fields}
    conformed(context, call, part)
    new.update(part)
    return None


async def modify(
    context: Context, call: Call, wish: Wish, *, is_patch: bool = False, is_owned: bool = False
) -> Reply:
    """Check a wish against the stored object and put it in its place."""
    kind, record = call.stored, context.store.pending(call.key)
    if record is None:
        raise not_found(call.kind, call.name)
    old = decoded(record)
    new = wish(decoded(record))
    _check_preconditions(call, old, new, is_patch=is_patch)
    restore(kind, call.subresource, old, new)
    _complete(context, call, new, old)
    context.registry.model(kind).fill(new)
    _drop(context, call, new, old)
    if not is_owned:
        own(context, call, old, new)
    _count_generation(call, old, new)
    _judge(context, call, new, old)
    if new == old:
        await context.store.commit(())
        return _reply(200, presented(call.kind, record.value), call)
    if call.dry_run:
        _accounts(context, kind, old, new)
        return _reply(200, dumped(call.kind, new), call)
    if is_finished(kind, new):
        last = await remove(context, kind, record, old, new)
        await gone(context, kind)
        return _reply(200, dumped(call.kind, last), call)
    written = await store_object(context, kind, call.key, new, record, old)
    return _reply(200, presented(call.kind, written.value), call)


def _complete(context: Context, call: Call, new: Object, old: Object | None) -> None:
    """Add what an object may leave to another one that it refers to."""
    causes = complete(context, call, new, old)
    refuse(call.kind, new["metadata"].get("name", ""), told(call.kind, causes))


def _drop(context: Context, call: Call, new: Object, old: Object | None) -> None:
    """Leave out what is switched off, whether its writer said it, a default or admission."""
    kind = call.stored
    if not kind.is_custom:
        call.warnings.extend(drop_disabled(context.gates, kind.schema, new, old))
        drop_stale_marks(kind.schema, new)


def _judge(context: Context, call: Call, new: Object, old: Object | None) -> None:
    """Refuse what breaks a rule or a limit; tell of what is taken all the same.

    What is judged is the stored form, but some rules are only for one of the forms it comes in, and
    that is the one that its client is told of.
    """
    kind = call.stored
    faults = list(context.registry.model(call.kind).faults(new, old, call.subresource))
    faults += gated_faults(context.gates, kind, new, old)
    refuse(kind, new["metadata"].get("name", ""), told(call.kind, faults))
    check_limits(context, call, new, old)
    restrict(context, call, new, old)
    if kind is RESOURCE_QUOTA:
        take_stock(context, old, new)
    call.warnings.extend(context.registry.model(kind).warnings(new, old))


async def store_object(
    context: Context,
    kind: Kind,
    key: str,
    obj: Object,
    record: Record | None,
    old: Object | None,
    also: Sequence[Write] = (),
) -> Record:
    """One transaction: the object in place of an old one, the accounts, and what else."""
    writes = [Write(key, encoder(obj), record.revision if record else 0), *also]
    writes += _accounts(context, kind, old, obj)
    try:
        with context.meter.stage("commit"):
            change, *_ = await context.store.commit(writes)
    except Stale as error:
        raise modified(kind, obj["metadata"]["name"]) from error
    assert change.after is not None
    return change.after


async def remove(
    context: Context,
    kind: Kind,
    record: Record,
    old: Object,
    last: Object,
    also: Sequence[Write] = (),
) -> Object:
    """Delete an object for good; its last state."""
    writes = [Write(record.key, None, record.revision), *also]
    writes += _accounts(context, kind, old, None)
    try:
        change, *_ = await context.store.commit(writes)
    except Stale as error:
        raise modified(kind, last["metadata"]["name"]) from error
    last["metadata"]["resourceVersion"] = str(change.revision)
    return last


def _accounts(context: Context, kind: Kind, old: Object | None, new: Object | None) -> list[Write]:
    """What an object takes of its node and of the quotas of its namespace, brought up to date."""
    writes = charges(context, kind, old, new)
    if kind is POD:
        writes += entries(context.store, [(charge(old), charge(new))])
    return writes


def is_finished(kind: Kind, obj: Object) -> bool:
    """Whether an object that is being deleted has nothing left to wait for."""
    meta = obj["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers"):
        return False
    if kind is NAMESPACE:
        return not obj.get("spec", {}).get("finalizers")
    return not meta.get("deletionGracePeriodSeconds")


def _begin(context: Context, call: Call, meta: Object) -> None:
    """The metadata of a new object; what only the server may say is said anew."""
    for key in (*OURS[2:], "resourceVersion"):
        meta.pop(key, None)
    if not meta.get("name") and (prefix := meta.get("generateName")):
        meta["name"] = _generated(context, call, prefix)
    if call.kind.namespaced:
        meta["namespace"] = call.namespace
    meta["uid"] = context.chance.uid()
    meta["creationTimestamp"] = context.stamp()
    if call.kind.generation:
        meta["generation"] = 1


def _generated(context: Context, call: Call, prefix: str) -> str:
    for _ in range(_ATTEMPTS):
        name = prefix[:_LONGEST_PREFIX] + context.chance.suffix(_GENERATED)
        if context.store.pending(call.kind.key(call.namespace, name)) is None:
            break
    return name


def _check_place(call: Call, obj: Object) -> None:
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


def _check_preconditions(call: Call, old: Object, new: Object, *, is_patch: bool) -> None:
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
        raise conflict(kind, call.name, (
            f"Precondition failed: UID in precondition: {meta['uid']}, "
            f"UID in object meta: {old['metadata']['uid']}"
        ))  # fmt: skip
    if version and version != old["metadata"]["resourceVersion"]:
        raise modified(kind, call.name)


def own(context: Context, call: Call, old: Object | None, new: Object) -> None:
    """Note who said what: what a writer added or changed is its own from now on."""
    kind, agent = call.stored, call.request.headers.get("user-agent", "")
    manager = call.query.get("fieldManager") or agent.partition("/")[0] or "unknown"
    writer = Writer(manager[:_LONGEST_MANAGER], kind.api_version, call.subresource)
    # What a new object says of its own status is not kept, so nobody can own it.
    said = new
    if old is None and "status" in kind.subresources:
        said = {key: value for key, value in new.items() if key != "status"}
    model = context.registry.model(kind)
    if not model.fits(said):
        return
    if old is not None and not model.fits(old):
        old = None  # its schema has changed since: whoever writes it now owns all of it
    fields = after_update(model.schema, old, said, writer, context.stamp())
    if fields:
        new["metadata"]["managedFields"] = fields
    else:
        new["metadata"].pop("managedFields", None)


def _count_generation(call: Call, old: Object, new: Object) -> None:
    """One more for another spec; of a kind that users define, for anything but metadata."""
    kind, fields = call.stored, ["spec"] if "spec" in old else []
    if kind.is_custom:
        fields = [key for key in {**old, **new} if key not in ("metadata", call.subresource)]
    if kind.generation and any(new.get(field) != old.get(field) for field in fields):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _bad_force() -> ApiError:
    cause = Cause(
        "force", "FieldValueForbidden", "Forbidden: may not be specified for non-apply patch"
    )
    return Invalid(
        f'PatchOptions.meta.k8s.io "" is invalid: {cause}',
        group="meta.k8s.io", kind="PatchOptions", causes=[cause],
    )  # fmt: skip


def _reply(code: int, body: bytes, call: Call) -> Reply:
    return Reply(code, body, headers=call.warning_headers())
