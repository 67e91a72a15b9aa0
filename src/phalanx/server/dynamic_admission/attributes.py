"""AdmissionAttributes: what webhooks and policies see of one request.

Objects are kept in the stored form, with which the handlers work. `form` converts them to the
version that a webhook or policy asks for. Subresources with a kind of their own (Scale, Eviction,
Binding) have no other form.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import orjson

from phalanx.api.conversion.hub import from_hub, to_hub
from phalanx.api.custom_resources.custom_kinds import CustomKind
from phalanx.api.kinds import NAMESPACE, Kind
from phalanx.api.wire import Object, UserInfo
from phalanx.server.objects import decode_record
from phalanx.server.request_info import RequestInfo

if TYPE_CHECKING:
    from phalanx.server.context import ServerContext

Operation = Literal["CREATE", "UPDATE", "DELETE"]
_OPTIONS_KINDS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}
_META_VERSION = "meta.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class ReviewForm:
    """How the object of a request appears in reviews, if it is not the stored object itself.

    `show` makes the reviewed object from the stored one; `restore` writes its changes back.
    """

    kind: Kind
    subresource: str
    show: Callable[[Object], Object]
    restore: Callable[[Object, Object], None]


@dataclass(slots=True)
class AdmissionAttributes:
    """One request to admit. Mutating hooks replace `object`; it is None in a deletion.

    `options` is a CreateOptions, UpdateOptions, PatchOptions or DeleteOptions. `review_form` is set
    for subresources with a kind of their own. `unset` is the metadata that the server has set in a
    new object already, but that mutating hooks do not see: Kubernetes sets it after them.
    """

    context: ServerContext
    request_info: RequestInfo
    operation: Operation
    name: str
    object: Object | None
    old: Object | None = None
    options: Object = field(default_factory=dict)
    dry_run: bool = False
    review_form: ReviewForm | None = None
    unset: Object = field(default_factory=dict)
    #: What `prepare` has converted: object and old object in the version of a kind; and from what.
    _prepared: dict[Kind, tuple[Object | None, Object | None]] = field(default_factory=dict)
    _prepared_from: dict[Kind, bytes] = field(default_factory=dict)
    #: The object in the version of a kind that a hook has changed, before `settle`.
    _changed: tuple[Kind, Object] | None = None

    @property
    def kind(self) -> Kind:
        """The served kind of the object of the request."""
        return self.review_kind(self.resource_kind)

    @property
    def resource_kind(self) -> Kind:
        """The served kind of the resource that the request is about."""
        return self.request_info.kind

    @property
    def subresource(self) -> str:
        """The subresource of the request, or ""."""
        return self.review_form.subresource if self.review_form else self.request_info.subresource

    @property
    def namespace(self) -> str:
        """The namespace of the request; for a Namespace its own name."""
        return self.name if self.resource_kind is NAMESPACE else self.request_info.namespace

    @property
    def user(self) -> UserInfo:
        """The user who makes the request."""
        return self.request_info.request.user

    def review_kind(self, kind: Kind) -> Kind:
        """Return the kind of the reviewed object, if rules ask for a kind of the resource."""
        return self.review_form.kind if self.review_form else kind

    def form(self, kind: Kind, obj: Object | None) -> Object | None:
        """Return an object as clients of a kind read it."""
        if obj is None:
            return None
        if self.review_form:
            shown = self.review_form.show(obj)
        elif self._needs_webhook(kind):
            if self._changed is not None and obj is self.object:
                shown = self._changed[1]
            else:
                shown = self._prepared[kind][0 if obj is self.object else 1] or {}
        else:
            shown = from_hub(kind, obj)
        meta = {
            k: v for k, v in shown.get("metadata", {}).items() if v != "" and k not in self.unset
        }
        type_meta = {"apiVersion": kind.api_version, "kind": kind.name}
        return {**type_meta, **shown, "metadata": meta, **type_meta}

    def accept_form(self, kind: Kind, changed: Object) -> None:
        """Replace the object by one of a kind, which a hook has changed. Raises Malformed."""
        assert self.object is not None
        body = {key: value for key, value in changed.items() if key not in ("apiVersion", "kind")}
        registry = self.context.registry
        registry.strategy(kind).normalize(body)
        if self.review_form:
            self.review_form.restore(body, self.object)
        elif self._needs_webhook(kind):
            self._changed = kind, body
        else:
            self._replace_object(to_hub(kind, body))

    def _replace_object(self, stored: Object) -> None:
        assert self.object is not None
        name = stored["metadata"].get("name")
        stored["metadata"] |= self.unset | ({"name": name} if name else {})
        self.object.clear()
        self.object.update(stored)
        registry = self.context.registry
        registry.strategy(self.request_info.stored_kind).apply_defaults(self.object)

    def _needs_webhook(self, kind: Kind) -> bool:
        """Whether only a conversion webhook can show the object in the version of a kind."""
        is_converted = isinstance(kind, CustomKind) and kind.conversion is not None
        return is_converted and kind.version != self.resource_kind.version

    async def prepare(self, kind: Kind) -> None:
        """Convert the objects of the request to the version that a hook asks for.

        Hooks call it before `form`, and `settle` after `accept_form`. It does something only if a
        webhook converts between the versions, and the objects have changed since the last call.
        Raises ConversionFailed.
        """
        if self.review_form or not self._needs_webhook(kind):
            return
        assert isinstance(kind, CustomKind)
        converter, source = self.context.dynamic_admission.converter, self.resource_kind.version
        encoded = orjson.dumps([obj for obj in (self.object, self.old) if obj is not None])
        if self._prepared_from.get(kind) == encoded:
            return
        forms = await converter.convert(
            kind, orjson.loads(encoded), source=source, target=kind.version
        )
        new = forms[0] if self.object is not None else None
        self._prepared[kind] = new, forms[-1] if self.old is not None else None
        self._prepared_from[kind] = encoded

    def leave_level(self, kind: Kind) -> AbstractContextManager[None]:
        """Free the place of the request while it waits for a conversion webhook, if it needs one.

        For hooks that run in the place of the request: not for webhooks, which leave it anyway.
        """
        if self.review_form or not self._needs_webhook(kind):
            return nullcontext()
        return self.context.dynamic_admission.leave_level("update", self.request_info)

    async def settle(self) -> None:
        """Convert an object that a hook has changed back to the version of the request."""
        if self._changed is None:
            return
        (kind, changed), self._changed = self._changed, None
        assert isinstance(kind, CustomKind)
        converter, target = self.context.dynamic_admission.converter, self.resource_kind.version
        (back,) = await converter.convert(kind, [changed], source=kind.version, target=target)
        self._replace_object(back)

    def namespace_object(self) -> Object | None:
        """Return the Namespace of the request, or None for cluster-scoped objects."""
        if self.resource_kind is NAMESPACE and self.object is not None:
            return self.object
        record = None
        if self.namespace:
            record = self.context.store.get(NAMESPACE.store_key("", self.namespace))
        return decode_record(record) if record else None


def request_options(request_info: RequestInfo) -> Object:
    """Return the options of a create, update or patch as an object."""
    query = request_info.query
    options: Object = {
        "kind": _OPTIONS_KINDS.get(request_info.request.method, "CreateOptions"),
        "apiVersion": _META_VERSION,
    }
    if "dryRun" in query:
        options["dryRun"] = [query["dryRun"]]
    if "force" in query:
        options["force"] = query["force"] in ("true", "1")
    options |= {key: query[key] for key in ("fieldManager", "fieldValidation") if query.get(key)}
    return options


def delete_options(body: Object) -> Object:
    """Return the options of a deletion as an object."""
    return {"kind": "DeleteOptions", "apiVersion": _META_VERSION, **body}
