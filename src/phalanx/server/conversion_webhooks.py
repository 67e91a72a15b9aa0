"""Conversion webhooks: they convert custom resources between the versions of their definition.

A definition with `conversion.strategy: Webhook` names a webhook. The server sends it a
ConversionReview with up to `_BATCH_OBJECTS` objects, and checks the answer as Kubernetes does: one
object for each, of the same name, namespace, uid and kind, in the version that was asked for. The
webhook may change labels and annotations; all other metadata stays. Then the object is pruned by
the schema of its new version, and gets its defaults.

Converted objects are cached by their revision, so that all watches of a version, and repeated
lists, need one conversion of each object.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import orjson

from phalanx.api.custom_resources.custom_kinds import CustomKind, WebhookConversion
from phalanx.api.errors import ConversionFailed
from phalanx.api.normalization import Malformed
from phalanx.api.validation.custom_resource_definition import CONVERSION_REVIEW_VERSIONS
from phalanx.api.wire import Object
from phalanx.server.discovery import KindRegistry
from phalanx.server.dynamic_admission.webhook_client import WebhookCallFailed, WebhookClient
from phalanx.server.objects import encoder, split_version
from phalanx.store.kv import KeyValue

_GROUP = "apiextensions.k8s.io"
#: Seconds that a webhook has for one review, as in Kubernetes.
_TIMEOUT = 30.0
#: Objects and bytes of one review.
_BATCH_OBJECTS, _BATCH_BYTES = 500, 2 * 1024 * 1024
#: Bytes of converted objects that are kept.
_CACHE_BYTES = 32 * 1024 * 1024
#: Metadata that a webhook may change.
_MUTABLE_METADATA = ("labels", "annotations")
_CALL_PREFIX = "failed to call webhook: "


#: Values by store key and revision; the same, for one kind and the version that they are in.
_Values = dict[tuple[str, int], bytes]
_BatchKey = tuple[CustomKind, str, tuple[tuple[str, int], ...]]


class ConversionKey(NamedTuple):
    """One state of an object in one version; the definition is that of `definition_revision`."""

    store_key: str
    revision: int
    version: str
    definition_revision: int


class VersionConverter:
    """Converts objects by the webhooks of their definitions."""

    def __init__(self, client: WebhookClient, registry: KindRegistry) -> None:
        self._client, self._registry = client, registry
        self._cache: OrderedDict[ConversionKey, bytes] = OrderedDict()
        self._cached_bytes = self._reviews = 0
        self._running: dict[_BatchKey, asyncio.Future[_Values]] = {}

    def find(self, kind: CustomKind, record: KeyValue) -> bytes | None:
        """Return a stored object in the version of a kind; None if a webhook must convert it."""
        conversion = _conversion_of(kind)
        named, value = split_version(record.value)
        if (named or conversion.unnamed_version) == kind.version:
            return value
        key = ConversionKey(record.key, record.revision, kind.version, kind.revision)
        if found := self._cache.get(key):
            self._cache.move_to_end(key)
        return found

    async def convert_records(self, kind: CustomKind, records: Sequence[KeyValue]) -> _Values:
        """Convert stored objects to the version of a kind, by key and revision.

        Raises ConversionFailed. The configuration is the present one, also of an open watch.
        """
        present = self._registry.find(kind.group, kind.version, kind.plural)
        if isinstance(present, CustomKind) and present.conversion is not None:
            kind = present
        found: _Values = {}
        missing: dict[str, _Values] = {}
        for record in records:
            if (value := self.find(kind, record)) is not None:
                found[record.key, record.revision] = value
            else:
                named, value = split_version(record.value)
                version = named or _conversion_of(kind).unnamed_version
                missing.setdefault(version, {})[record.key, record.revision] = value
        for version, values in missing.items():
            found |= await self._share(kind, values, version)
        return found

    async def _share(self, kind: CustomKind, values: _Values, source: str) -> _Values:
        """Convert stored values, once for all requests that need the same at the same time."""
        key = (kind, source, tuple(values))
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(self._convert_values(kind, values, source))
            self._running[key] = task

            def forget(done: asyncio.Future[_Values]) -> None:
                del self._running[key]
                if not done.cancelled():
                    done.exception()  # All requests that waited for it may have gone away.

            task.add_done_callback(forget)
        return await asyncio.shield(task)

    async def _convert_values(self, kind: CustomKind, values: _Values, source: str) -> _Values:
        objects = [orjson.loads(value) for value in values.values()]
        converted = await self.convert(kind, objects, source=source, target=kind.version)
        found: _Values = {}
        for (key, revision), obj in zip(values, converted, strict=True):
            value = found[key, revision] = encoder(obj)(revision)
            self.remember(ConversionKey(key, revision, kind.version, kind.revision), value)
        return found

    async def convert(
        self, kind: CustomKind, objects: Sequence[Object], *, source: str, target: str
    ) -> list[Object]:
        """Convert objects from one version to another, in batches. Raises ConversionFailed."""
        if source == target:
            return list(objects)
        head = {"apiVersion": f"{kind.group}/{source}", "kind": kind.name}
        converted: list[Object] = []
        for batch in _batches([{**head, **obj} for obj in objects]):
            converted += await self._review(kind, batch, source=source, target=target)
        return converted

    def remember(self, key: ConversionKey, value: bytes) -> None:
        """Keep a converted object."""
        self._cached_bytes += len(value) - len(self._cache.pop(key, b""))
        self._cache[key] = value
        while self._cached_bytes > _CACHE_BYTES:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)

    async def _review(
        self, kind: CustomKind, objects: Sequence[Object], *, source: str, target: str
    ) -> list[Object]:
        """Let the webhook convert one batch, and check its answer."""
        conversion, self._reviews = _conversion_of(kind), self._reviews + 1
        what = f"conversion webhook for {kind.group}/{source}, Kind={kind.name}"
        wanted, uid = f"{kind.group}/{target}", str(UUID(int=self._reviews))
        version = next(
            one for one in CONVERSION_REVIEW_VERSIONS if one in conversion.review_versions
        )
        review = {
            "kind": "ConversionReview",
            "apiVersion": f"{_GROUP}/{version}",
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects},
        }
        try:
            answer = await self._client.call(conversion.client_config, review, _TIMEOUT)
        except WebhookCallFailed as error:
            detail = str(error).removeprefix(_CALL_PREFIX)
            raise ConversionFailed(f"{what} failed: {detail}") from error
        converted = _read_response(answer, f"{_GROUP}/{version}", uid, what=what)
        if len(converted) != len(objects):
            counts = f"{len(converted)} objects, expected {len(objects)}"
            raise ConversionFailed(f"{what} returned {counts}")
        return [
            _accept(
                kind,
                original,
                obj,
                wanted=wanted,
                place=f"{what} returned invalid object at index {at}",
            )
            for at, (original, obj) in enumerate(zip(objects, converted, strict=True))
        ]


def _conversion_of(kind: CustomKind) -> WebhookConversion:
    assert kind.conversion is not None
    return kind.conversion


def _batches(objects: Iterable[Object]) -> Iterator[list[Object]]:
    batch: list[Object] = []
    size = 0
    for obj in objects:
        length = len(orjson.dumps(obj))
        if batch and (len(batch) == _BATCH_OBJECTS or size + length > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(obj)
        size += length
    if batch:
        yield batch


def _read_response(answer: Object, api_version: str, uid: str, *, what: str) -> list[Object]:
    """Return the objects of an answer; raise ConversionFailed if it is a failure or malformed."""
    given = f"{answer.get('apiVersion', '')}, Kind={answer.get('kind', '')}"
    if given != f"{api_version}, Kind=ConversionReview":
        expected = f"{api_version}, Kind=ConversionReview"
        raise ConversionFailed(
            f"{what} failed: expected webhook response of {expected}, got {given}"
        )
    response = answer.get("response")
    if not isinstance(response, dict):
        raise ConversionFailed(f"{what} failed: no response provided")
    if response.get("uid") != uid:
        detail = f'expected response.uid="{uid}", got "{response.get("uid", "")}"'
        raise ConversionFailed(f"{what} failed: {detail}")
    result = response.get("result")
    status = result if isinstance(result, dict) else {}
    if status.get("status") != "Success":
        reason = status.get("message") or (
            f"response.result.status was '{status.get('status', '')}', not 'Success'"
        )
        raise ConversionFailed(f"{what} failed: {reason}")
    objects = response.get("convertedObjects") or []
    if not isinstance(objects, list) or not all(isinstance(one, dict) for one in objects):
        raise ConversionFailed(f"{what} failed: response.convertedObjects is not a list of objects")
    return objects


def _accept(kind: CustomKind, original: Object, obj: Object, *, wanted: str, place: str) -> Object:
    """Check a converted object; return it in the stored layout, with the metadata of before."""
    version, name = obj.pop("apiVersion", ""), obj.pop("kind", "")
    if version != wanted:
        detail = f"invalid groupVersion (expected: {wanted}, received: {version})"
        raise ConversionFailed(f"{place}: {detail}")
    if name != original["kind"]:
        detail = f"invalid kind (expected: {original['kind']}, received: {name})"
        raise ConversionFailed(f"{place}: {detail}")
    before, meta = original["metadata"], obj.get("metadata")
    if not isinstance(meta, dict):
        raise ConversionFailed(f"{place}: missing metadata in converted object")
    for field, shown in (("name", "name"), ("namespace", "namespace"), ("uid", "UID")):
        expected, found = before.get(field) or "", meta.get(field) or ""
        if expected != found:
            raise ConversionFailed(f"{place}: must have the same {shown}: {expected} != {found}")
    obj["metadata"] = {key: value for key, value in before.items() if key not in _MUTABLE_METADATA}
    for field in _MUTABLE_METADATA:
        if values := meta.get(field):
            if not _is_string_map(values):
                detail = f"invalid metadata.{field}: must be a map of strings"
                raise ConversionFailed(f"{place}: {detail}")
            obj["metadata"][field] = values
    strategy = _conversion_of(kind).strategies[wanted.rpartition("/")[2]]
    try:
        strategy.normalize(obj)
    except Malformed as error:
        raise ConversionFailed(f"{place}: {error}") from error
    strategy.apply_defaults(obj)
    return obj


def _is_string_map(values: object) -> bool:
    return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())
