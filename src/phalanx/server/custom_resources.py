"""Kinds that come and go: what stored CustomResourceDefinitions define is served at once.

    request ─▶ writing ─▶ store ─▶ follower: rows of the registry ─▶ reply

A definition is judged by a model of its own, which also writes its status: names that are free are
accepted in the very request that asks for them. The rows follow the store: they change right after
a commit and before its writer goes on, so whoever reads the reply finds the kind served, and a
server that starts finds the rows that it left.

A definition that is deleted waits for its objects (`clear`); the last one takes it along
(`let_go`). From its mark on, nothing new is created (`refuse_ending`).

What we serve ourselves cannot be defined: such a definition is refused. One that was there before
we did so stays, but defines nothing any more; its objects are ours, and outlive it.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.api.conform import ConformResult
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
from phalanx.api.errors import Cause, MethodNotAllowed, NoSuchResource
from phalanx.api.field_errors import invalid
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, Kind
from phalanx.api.schema import Schema, schema
from phalanx.api.validation.checks import CREATED
from phalanx.api.validation.custom_resource_definition import (
    check_definition,
    check_definition_status,
)
from phalanx.api.validation.metadata import check_metadata
from phalanx.api.wire import Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record, encoder
from phalanx.server.resource_quotas import release_writes
from phalanx.store.kv import KeyValue, RevisionConflict, StoreChange, StoreWrite

_PREFIX = CUSTOM_RESOURCE_DEFINITION.store_prefix()
#: Objects that are deleted in one transaction.
_DELETE_BATCH = 500


class CustomResourceRegistrar:
    """Keeps the rows of a registry in step with the definitions in a store."""

    def __init__(self, context: ServerContext) -> None:
        self._registry, self._watch_broadcaster = context.registry, context.watch_broadcaster
        self._registry.set_model(
            CUSTOM_RESOURCE_DEFINITION, CustomResourceDefinitionStrategy(context)
        )
        for record in context.store.range(_PREFIX):
            self._register(record.key, record)
        context.store.subscribe(self._on_commit)

    def _on_commit(self, changes: Sequence[StoreChange]) -> None:
        for change in changes:
            if change.key.startswith(_PREFIX):
                self._register(change.key, change.after)

    def _register(self, key: str, record: KeyValue | None) -> None:
        made, name = [], key.removeprefix(_PREFIX)
        if record is not None:
            made = served_kinds(
                decode_record(record), created_revision=record.created, revision=record.revision
            )
        self._registry.define(name, [(row.kind, row.strategy) for row in made])
        if not made:
            plural, _, group = name.partition(".")
            self._watch_broadcaster.end_watches(_versionless_kind(group, plural).store_prefix())


class CustomResourceDefinitionStrategy:
    """How definitions are judged, and what their status says."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    @property
    def schema(self) -> Schema:
        """The shape of a definition."""
        return schema(CUSTOM_RESOURCE_DEFINITION.schema)

    def conform(self, obj: Object) -> ConformResult:
        """Drop in place what does not belong."""
        return self.schema.conform(obj)

    def matches_structure(self, obj: Object) -> bool:
        """What conforms to a definition fits it."""
        return True

    def apply_defaults(self, obj: Object) -> None:
        """Add in place what nobody said, and the status that follows from it."""
        self.schema.apply_defaults(obj)
        default_definition(obj)
        update_definition_status(
            obj, names_in_use(self._context, obj), self._context.now_timestamp()
        )

    def prepare_for_create(self, obj: Object, now: str) -> None:
        """Give a new definition a status of its own, whatever its maker said."""
        obj["status"] = {}
        self.apply_defaults(obj)

    def validate(self, new: Object, old: Object | None, subresource: str) -> Sequence[Cause]:
        """What is wrong with a definition."""
        check = check_definition_status if subresource == "status" else check_definition
        causes = [
            *check_metadata(CUSTOM_RESOURCE_DEFINITION, new, old),
            *check(new, CREATED if old is None else old),
            *(self._check_not_built_in(new) if old is None else ()),
        ]
        if not causes:
            # What could not be served must fail here, where nothing is written yet.
            served_kinds(new, created_revision=0, revision=0)
        return list(dict.fromkeys(causes))

    def _check_not_built_in(self, new: Object) -> Sequence[Cause]:
        """What we serve ourselves needs no definition, and would not follow one."""
        group, plural = _group_and_plural(new)
        if not self._context.registry.is_built_in(group, plural):
            return ()
        detail = f"{plural}.{group} are served by Phalanx itself, without a definition"
        return [invalid("spec.names.plural", plural, detail)]

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """Nothing besides."""
        return ()


def _group_and_plural(definition: Object) -> tuple[str, str]:
    """The group and the plural that a definition asks for."""
    spec = definition["spec"]
    return spec.get("group", ""), spec.get("names", {}).get("plural", "")


def names_in_use(context: ServerContext, definition: Object) -> TakenNames:
    """The names that others have in the group of a definition."""
    group, name = definition["spec"].get("group", ""), definition["metadata"].get("name", "")
    others = [
        decode_record(one)
        for one in _definitions_of_group(context, group)
        if one.key != _PREFIX + name
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
    """The definitions of a group, told by their names."""
    return [one for one in context.store.range(_PREFIX) if one.key.endswith(f".{group}")]


# ------------------------------------------------------------------------------------------ the end


def check_not_terminating(context: ServerContext, kind: Kind) -> None:
    """Refuse a new object of a definition that is being deleted, decided or committed."""
    if not isinstance(kind, CustomKind):
        return
    record = context.store.pending(_PREFIX + kind.resource)
    if record is None:
        raise NoSuchResource
    # The row knows the revision that it was made of: only a later one need be looked into.
    is_newer = record.revision != kind.revision
    if (
        "deletionTimestamp" in decode_record(record)["metadata"]
        if is_newer
        else kind.is_terminating
    ):
        raise MethodNotAllowed("create not allowed while custom resource definition is terminating")


async def resume_deletions(context: ServerContext) -> None:
    """Go on with deletions that were under way when the server stopped."""
    for record in context.store.range(_PREFIX):
        if "deletionTimestamp" in decode_record(record)["metadata"]:
            await delete_custom_objects(context, record.key.removeprefix(_PREFIX))


async def delete_custom_objects(context: ServerContext, name: str) -> None:
    """Delete the objects of a definition that is being deleted, then the definition."""
    record = context.store.get(_PREFIX + name)
    if record is not None:
        if kind := _stored_kind(context, decode_record(record)):
            await _delete_all_objects(context, kind)
        await remove_cleanup_finalizer(context, name)


async def finish_definition_deletion(context: ServerContext, kind: Kind) -> None:
    """After an object is gone: let its definition go too, if it waited for that."""
    row = context.registry.find(kind.group, kind.version, kind.plural)
    if isinstance(row, CustomKind) and row.is_terminating:
        await remove_cleanup_finalizer(context, row.resource)


async def remove_cleanup_finalizer(context: ServerContext, name: str) -> None:
    """Let a definition that is being deleted go, once there is no object of it."""
    record = context.store.pending(_PREFIX + name)
    definition = decode_record(record) if record else {"metadata": {}}
    finalizers: list[str] = definition["metadata"].get("finalizers", [])
    if record is None or CLEANUP_FINALIZER not in finalizers:
        return
    kind = _stored_kind(context, definition)
    if kind and context.store.range(kind.store_prefix(), limit=1):
        return
    finalizers.remove(CLEANUP_FINALIZER)
    encode = encoder(definition) if finalizers else None
    await context.store.commit([StoreWrite(record.key, encode, record.revision)])
    await _retry_name_acceptance(context, definition["spec"]["group"])


def _stored_kind(context: ServerContext, definition: Object) -> Kind | None:
    """The kind of the objects of a definition, in no version; None if it has none of its own.

    The objects below a name that was not accepted are somebody else's; and ours are those of a kind
    that became one of ours.
    """
    is_ours = context.registry.is_built_in(*_group_and_plural(definition))
    if is_ours or find_condition(definition, ESTABLISHED).get("status") != "True":
        return None
    return _versionless_kind(
        definition["spec"]["group"], definition["status"]["acceptedNames"]["plural"]
    )


def _versionless_kind(group: str, plural: str) -> Kind:
    return Kind(group, "", "", plural, "")


async def _delete_all_objects(context: ServerContext, kind: Kind) -> None:
    """Delete all objects of a kind: at once, or as soon as their finalizers are gone."""
    while True:
        ends = [
            (one, _deletion_write(context, one)) for one in context.store.range(kind.store_prefix())
        ]
        page = [(one, write) for one, write in ends if write][:_DELETE_BATCH]
        if not page:
            return
        gone = [decode_record(one) for one, write in page if write.encode is None]
        try:
            writes = [write for _, write in page]
            await context.store.commit([*writes, *release_writes(context, kind, gone)])
        except RevisionConflict:
            # Somebody else writes to one of them: look again when that is done.
            await context.store.commit(())


def _deletion_write(context: ServerContext, record: KeyValue) -> StoreWrite | None:
    """What deletes an object, or marks it; None if that was done before."""
    obj = decode_record(record)
    meta = obj["metadata"]
    if not meta.get("finalizers"):
        return StoreWrite(record.key, None, record.revision)
    if "deletionTimestamp" in meta:
        return None
    meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = context.now_timestamp(), 0
    meta["generation"] = meta.get("generation", 0) + 1
    return StoreWrite(record.key, encoder(obj), record.revision)


async def _retry_name_acceptance(context: ServerContext, group: str) -> None:
    """Look again at definitions whose names were taken: some may be free now."""
    model = context.registry.model(CUSTOM_RESOURCE_DEFINITION)
    for record in _definitions_of_group(context, group):
        definition = decode_record(record)
        if find_condition(definition, NAMES_ACCEPTED).get("status") == "True":
            continue
        model.apply_defaults(definition)
        if definition == decode_record(record):
            continue
        try:
            write = StoreWrite(record.key, encoder(definition), record.revision)
            await context.store.commit([write])
        except RevisionConflict:
            continue  # whoever writes it has it judged anew
