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

from phalanx.api.causes import invalid
from phalanx.api.conform import Conformed
from phalanx.api.custom.kinds import CustomKind, rows
from phalanx.api.defaults.crd import (
    ACCEPTED,
    CLEANUP,
    ESTABLISHED,
    Names,
    condition,
    default_definition,
    establish,
)
from phalanx.api.errors import Cause, MethodNotAllowed, NoSuchResource
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, Kind
from phalanx.api.rules.checks import CREATED
from phalanx.api.rules.crd import DEFINITION, DEFINITION_STATUS
from phalanx.api.rules.meta import check_metadata
from phalanx.api.schema import Schema, schema
from phalanx.api.wire import Object
from phalanx.server.context import Context
from phalanx.server.objects import decoded, encoder
from phalanx.server.quotas import releases
from phalanx.store.kv import Change, Record, Stale, Write

_PREFIX = CUSTOM_RESOURCE_DEFINITION.prefix()
#: Objects that are deleted in one transaction.
_PAGE = 500


class Definitions:
    """Keeps the rows of a registry in step with the definitions in a store."""

    def __init__(self, context: Context) -> None:
        self._registry, self._hub = context.registry, context.hub
        self._registry.judge(CUSTOM_RESOURCE_DEFINITION, DefinitionModel(context))
        for record in context.store.range(_PREFIX):
            self._serve(record.key, record)
        context.store.follow(self._follow)

    def _follow(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.key.startswith(_PREFIX):
                self._serve(change.key, change.after)

    def _serve(self, key: str, record: Record | None) -> None:
        made, name = [], key.removeprefix(_PREFIX)
        if record is not None:
            made = rows(decoded(record), since=record.created, revision=record.revision)
        self._registry.define(name, [(row.kind, row.model) for row in made])
        if not made:
            plural, _, group = name.partition(".")
            self._hub.end(_kind(group, plural).prefix())


class DefinitionModel:
    """How definitions are judged, and what their status says."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def schema(self) -> Schema:
        """The shape of a definition."""
        return schema(CUSTOM_RESOURCE_DEFINITION.schema)

    def conform(self, obj: Object) -> Conformed:
        """Drop in place what does not belong."""
        return self.schema.conform(obj)

    def fits(self, obj: Object) -> bool:
        """What conforms to a definition fits it."""
        return True

    def fill(self, obj: Object) -> None:
        """Add in place what nobody said, and the status that follows from it."""
        self.schema.fill(obj)
        default_definition(obj)
        establish(obj, taken(self._context, obj), self._context.stamp())

    def begin(self, obj: Object, now: str) -> None:
        """Give a new definition a status of its own, whatever its maker said."""
        obj["status"] = {}
        self.fill(obj)

    def faults(self, new: Object, old: Object | None, part: str) -> Sequence[Cause]:
        """What is wrong with a definition."""
        check = DEFINITION_STATUS if part == "status" else DEFINITION
        causes = [
            *check_metadata(CUSTOM_RESOURCE_DEFINITION, new, old),
            *check(new, CREATED if old is None else old),
            *(self._ours(new) if old is None else ()),
        ]
        if not causes:
            # What could not be served must fail here, where nothing is written yet.
            rows(new, since=0, revision=0)
        return list(dict.fromkeys(causes))

    def _ours(self, new: Object) -> Sequence[Cause]:
        """What we serve ourselves needs no definition, and would not follow one."""
        group, plural = _place(new)
        if not self._context.registry.is_known(group, plural):
            return ()
        detail = f"{plural}.{group} are served by Phalanx itself, without a definition"
        return [invalid("spec.names.plural", plural, detail)]

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """Nothing besides."""
        return ()


def _place(definition: Object) -> tuple[str, str]:
    """The group and the plural that a definition asks for."""
    spec = definition["spec"]
    return spec.get("group", ""), spec.get("names", {}).get("plural", "")


def taken(context: Context, definition: Object) -> Names:
    """The names that others have in the group of a definition."""
    group, name = definition["spec"].get("group", ""), definition["metadata"].get("name", "")
    others = [decoded(one) for one in _definitions(context, group) if one.key != _PREFIX + name]
    accepted = [one.get("status", {}).get("acceptedNames", {}) for one in others]
    known = [kind for kind in context.registry.known if kind.group == group]
    resources = [n for a in accepted for n in (a.get("plural"), a.get("singular"))]
    resources += [n for a in accepted for n in a.get("shortNames", ())]
    resources += [n for k in known for n in (k.plural, k.singular, *k.short_names)]
    kinds = [n for a in accepted for n in (a.get("kind"), a.get("listKind"))]
    kinds += [n for k in known for n in (k.name, k.list_name)]
    return Names(frozenset(filter(None, resources)), frozenset(filter(None, kinds)))


def _definitions(context: Context, group: str) -> list[Record]:
    """The definitions of a group, told by their names."""
    return [one for one in context.store.range(_PREFIX) if one.key.endswith(f".{group}")]


# ------------------------------------------------------------------------------------------ the end


def refuse_ending(context: Context, kind: Kind) -> None:
    """Refuse a new object of a definition that is being deleted, decided or committed."""
    if not isinstance(kind, CustomKind):
        return
    record = context.store.pending(_PREFIX + kind.resource)
    if record is None:
        raise NoSuchResource
    # The row knows the revision that it was made of: only a later one need be looked into.
    is_newer = record.revision != kind.revision
    if "deletionTimestamp" in decoded(record)["metadata"] if is_newer else kind.is_ending:
        raise MethodNotAllowed("create not allowed while custom resource definition is terminating")


async def resume(context: Context) -> None:
    """Go on with deletions that were under way when the server stopped."""
    for record in context.store.range(_PREFIX):
        if "deletionTimestamp" in decoded(record)["metadata"]:
            await clear(context, record.key.removeprefix(_PREFIX))


async def clear(context: Context, name: str) -> None:
    """Delete the objects of a definition that is being deleted, then the definition."""
    record = context.store.get(_PREFIX + name)
    if record is not None:
        if kind := _kept(context, decoded(record)):
            await _empty(context, kind)
        await let_go(context, name)


async def gone(context: Context, kind: Kind) -> None:
    """After an object is gone: let its definition go too, if it waited for that."""
    row = context.registry.find(kind.group, kind.version, kind.plural)
    if isinstance(row, CustomKind) and row.is_ending:
        await let_go(context, row.resource)


async def let_go(context: Context, name: str) -> None:
    """Let a definition that is being deleted go, once there is no object of it."""
    record = context.store.pending(_PREFIX + name)
    definition = decoded(record) if record else {"metadata": {}}
    finalizers: list[str] = definition["metadata"].get("finalizers", [])
    if record is None or CLEANUP not in finalizers:
        return
    kind = _kept(context, definition)
    if kind and context.store.range(kind.prefix(), limit=1):
        return
    finalizers.remove(CLEANUP)
    encode = encoder(definition) if finalizers else None
    await context.store.commit([Write(record.key, encode, record.revision)])
    await _reconsider(context, definition["spec"]["group"])


def _kept(context: Context, definition: Object) -> Kind | None:
    """The kind of the objects of a definition, in no version; None if it has none of its own.

    The objects below a name that was not accepted are somebody else's; and ours are those of a kind
    that became one of ours.
    """
    is_ours = context.registry.is_known(*_place(definition))
    if is_ours or condition(definition, ESTABLISHED).get("status") != "True":
        return None
    return _kind(definition["spec"]["group"], definition["status"]["acceptedNames"]["plural"])


def _kind(group: str, plural: str) -> Kind:
    return Kind(group, "", "", plural, "")


async def _empty(context: Context, kind: Kind) -> None:
    """Delete all objects of a kind: at once, or as soon as their finalizers are gone."""
    while True:
        ends = [(one, _end(context, one)) for one in context.store.range(kind.prefix())]
        page = [(one, write) for one, write in ends if write][:_PAGE]
        if not page:
            return
        gone = [decoded(one) for one, write in page if write.encode is None]
        try:
            writes = [write for _, write in page]
            await context.store.commit([*writes, *releases(context, kind, gone)])
        except Stale:
            # Somebody else writes to one of them: look again when that is done.
            await context.store.commit(())


def _end(context: Context, record: Record) -> Write | None:
    """What deletes an object, or marks it; None if that was done before."""
    obj = decoded(record)
    meta = obj["metadata"]
    if not meta.get("finalizers"):
        return Write(record.key, None, record.revision)
    if "deletionTimestamp" in meta:
        return None
    meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = context.stamp(), 0
    meta["generation"] = meta.get("generation", 0) + 1
    return Write(record.key, encoder(obj), record.revision)


async def _reconsider(context: Context, group: str) -> None:
    """Look again at definitions whose names were taken: some may be free now."""
    model = context.registry.model(CUSTOM_RESOURCE_DEFINITION)
    for record in _definitions(context, group):
        definition = decoded(record)
        if condition(definition, ACCEPTED).get("status") == "True":
            continue
        model.fill(definition)
        if definition == decoded(record):
            continue
        try:
            write = Write(record.key, encoder(definition), record.revision)
            await context.store.commit([write])
        except Stale:
            continue  # whoever writes it has it judged anew
