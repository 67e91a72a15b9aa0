"""The kinds that a server serves, found by where they are served.

What is served, told to clients: groups, versions, resources, schemas. All from the rows of
kinds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import orjson

from phalanx.api.custom_resources.custom_kinds import CustomKind, version_rank
from phalanx.api.definitions import full_definition_name
from phalanx.api.kinds import Kind
from phalanx.api.openapi import openapi_schema, references
from phalanx.api.strategy import BuiltinStrategy, ResourceStrategy
from phalanx.api.wire import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Object,
)

#: A kind and how its objects are judged.
ServedKind = tuple[Kind, ResourceStrategy]


class KindRegistry:
    """Rows of kinds, in the order of discovery: what is always there, then what users define."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._built_in: dict[Kind, ResourceStrategy] = {
            kind: BuiltinStrategy(kind) for kind in kinds
        }
        self._custom: dict[str, dict[Kind, ResourceStrategy]] = {}
        self._rebuild()

    def define(self, name: str, rows: Sequence[ServedKind]) -> None:
        """Serve what a definition defines in place of what it defined before, if anything."""
        self._custom.pop(name, None)
        if rows:
            self._custom[name] = dict(rows)
        self._rebuild()

    def set_model(self, kind: Kind, model: ResourceStrategy) -> None:
        """Judge a kind that is always there by another model than by its rows."""
        self._built_in[kind] = model
        self._rebuild()

    def _rebuild(self) -> None:
        self._models = dict(self._built_in)
        for _, rows in sorted(self._custom.items()):
            free = {k: m for k, m in rows.items() if not self.is_built_in(k.group, k.plural)}
            self._models |= free
        self.kinds = tuple(self._models)
        self._by_path = {(k.group, k.version, k.plural): k for k in reversed(self.kinds)}
        self._versions = {(k.group, k.version): None for k in self.kinds}

    @property
    def built_in(self) -> tuple[Kind, ...]:
        """The kinds that are always there."""
        return tuple(self._built_in)

    def is_built_in(self, group: str, plural: str) -> bool:
        """Whether a kind of that name is always there, in whatever version."""
        return any((kind.group, kind.plural) == (group, plural) for kind in self._built_in)

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind that is served at that place."""
        return self._by_path.get((group, version, plural))

    def model(self, kind: Kind) -> ResourceStrategy:
        """How objects of a kind are judged."""
        return self._models.get(kind) or BuiltinStrategy(kind)

    def serves(self, group: str, version: str) -> bool:
        """Whether anything is served in that group version."""
        return (group, version) in self._versions

    def kinds_in(self, group: str, version: str) -> list[Kind]:
        """All kinds of a group version."""
        return [k for k in self.kinds if (k.group, k.version) == (group, version)]

    def versions_by_group(self) -> dict[str, list[str]]:
        """The versions of each group, those that clients should prefer first."""
        found: dict[str, list[str]] = {}
        for group, version in self._versions:
            found.setdefault(group, []).append(version)
        return {group: sorted(versions, key=version_rank) for group, versions in found.items()}


_STATUS_VERBS = ("get", "patch", "update")
#: Subresource -> the kind that it takes, by name ("" for the object's own), group and version
#: ("" for the object's own), and its verbs.
SUBRESOURCES = {
    "status": ("", "", "", _STATUS_VERBS),
    "finalize": ("", "", "", ("update",)),
    "binding": ("Binding", "", "", ("create",)),
    "eviction": ("Eviction", "policy", "v1", ("create",)),
    "log": ("", "", "", ("get",)),
    "token": ("TokenRequest", "authentication.k8s.io", "v1", ("create",)),
    "resize": ("", "", "", _STATUS_VERBS),
    "ephemeralcontainers": ("", "", "", _STATUS_VERBS),
    "scale": ("Scale", "autoscaling", "v1", _STATUS_VERBS),
}
_AGGREGATED_DISCOVERY_GROUP = "apidiscovery.k8s.io"


def api_versions() -> Object:
    """`/api`."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(registry: KindRegistry) -> Object:
    """`/apis`."""
    groups = [
        _group_entry(name, versions)
        for name, versions in registry.versions_by_group().items()
        if name
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(registry: KindRegistry, name: str) -> Object | None:
    """`/apis/{group}`."""
    versions = registry.versions_by_group().get(name)
    if not name or versions is None:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group_entry(name, versions)}


def _group_entry(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(registry: KindRegistry, group: str, version: str) -> Object | None:
    """`/api/v1`, `/apis/{group}/{version}`."""
    served = registry.kinds_in(group, version)
    if not served:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": [entry for kind in served for entry in _resource_entries(kind)],
    }


def _resource_entries(kind: Kind) -> list[Object]:
    entry: Object = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    return [entry, *(_subresource_entry(kind, name) for name in kind.subresources)]


def _subresource_entry(kind: Kind, name: str) -> Object:
    other, group, version, verbs = SUBRESOURCES[name]
    entry: Object = {
        "name": f"{kind.plural}/{name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": other or kind.name,
        "verbs": list(verbs),
    }
    return {**entry, "group": group, "version": version} if group else entry


def aggregated_discovery(registry: KindRegistry, *, core: bool, version: str) -> Object:
    """`/api` or `/apis` in one document, as newer clients ask for it."""
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": _aggregated_versions(registry, group),
        }
        for group in registry.versions_by_group()
        if core == (not group)
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"{_AGGREGATED_DISCOVERY_GROUP}/{version}",
        "metadata": {},
        "items": items,
    }


def _aggregated_versions(registry: KindRegistry, group: str) -> list[Object]:
    return [
        {
            "version": version,
            "resources": [_aggregated_resource(kind) for kind in registry.kinds_in(group, version)],
            "freshness": "Current",
        }
        for version in registry.versions_by_group()[group]
    ]


def _aggregated_resource(kind: Kind) -> Object:
    entry: Object = {
        "resource": kind.plural,
        "responseKind": {"group": "", "version": "", "kind": kind.name},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.subresources:
        entry["subresources"] = [_aggregated_subresource(kind, name) for name in kind.subresources]
    return entry


def _aggregated_subresource(kind: Kind, name: str) -> Object:
    other, group, version, verbs = SUBRESOURCES[name]
    response = {"group": group, "version": version, "kind": other or kind.name}
    return {"subresource": name, "responseKind": response, "verbs": list(verbs)}


def openapi_index(registry: KindRegistry) -> Object:
    """`/openapi/v3`: where each document is, with a hash so that clients can keep it."""
    paths: Object = {}
    for group, versions in registry.versions_by_group().items():
        for version in versions:
            place = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(openapi_document(registry, group, version)).hexdigest().upper()
            paths[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
    return {"paths": paths}


def openapi_document(registry: KindRegistry, group: str, version: str) -> bytes:
    """The OpenAPI v3 document of one group version; made once, when first asked for."""
    return _openapi_v3_document(tuple(registry.kinds_in(group, version)))


@lru_cache(maxsize=256)
def _openapi_v3_document(served: tuple[Kind, ...]) -> bytes:
    return orjson.dumps({
        "openapi": "3.0.0",
        "info": {"title": "Phalanx", "version": "v1"},
        "paths": {path: item for kind in served for path, item in _openapi_paths(kind).items()},
        "components": {"schemas": _component_schemas(served)},
    })  # fmt: skip


def _component_schemas(served: Sequence[Kind]) -> Object:
    """All schemas that these kinds lead to, by full name."""
    roots = [k.schema for k in served if not k.is_custom]
    custom = [k for k in served if isinstance(k, CustomKind)]
    roots += ["meta.v1.ObjectMeta", "meta.v1.ListMeta"] if custom else []
    names = sorted({name for root in roots for name in references(root)})
    schemas: Object = {full_definition_name(name): openapi_schema(name) for name in names}
    for kind in custom:
        schemas |= kind.components
    return schemas


def openapi_v2_document(registry: KindRegistry, *, protobuf: bool = False) -> bytes:
    """`/openapi/v2`: all in one document, for clients that know no newer form."""
    return _openapi_v2_document(tuple(registry.kinds), protobuf)


@lru_cache(maxsize=2)
def _openapi_v2_document(served: tuple[Kind, ...], protobuf: bool) -> bytes:
    # Few ask for it: whoever does not need not load what makes it.
    from phalanx.api.openapi import encode_v2, v2_document

    paths = {path: item for kind in served for path, item in _openapi_paths(kind).items()}
    made = v2_document("Phalanx", _component_schemas(served), paths)
    return encode_v2(made) if protobuf else orjson.dumps(made)


def _openapi_paths(kind: Kind) -> Object:
    collection = kind.url_path("{namespace}")
    paths: Object = {
        collection: _operations(kind, ("get", "list"), ("post", "create")),
        f"{collection}/{{name}}": _operations(
            kind, ("get", "get"), ("put", "update"), ("patch", "patch"), ("delete", "delete")
        ),
    }
    return {path: item for path, item in paths.items() if item}


#: Options that tell kubectl that the server checks fields itself, and how a dry run is asked for.
_WRITE_OPTIONS = ("dryRun", "fieldManager", "fieldValidation")
_PATCH_TYPES = (APPLY_PATCH, JSON_PATCH, MERGE_PATCH)


def _operations(kind: Kind, *pairs: tuple[str, str]) -> Object:
    identity = {"group": kind.group, "version": kind.version, "kind": kind.name}
    own = (
        next(iter(kind.components))
        if isinstance(kind, CustomKind)
        else full_definition_name(kind.schema)
    )
    reference = {"$ref": f"#/components/schemas/{own}"}
    # Kinds that users define have no merge keys to go by.
    patches = _PATCH_TYPES if kind.is_custom else (*_PATCH_TYPES, STRATEGIC_PATCH)
    types = {"post": (JSON,), "put": (JSON,), "patch": patches}
    return {
        method: _operation(verb, identity, reference, types.get(method, ()))
        for method, verb in pairs
        if verb in kind.verbs
    }


def _operation(verb: str, identity: Object, reference: Object, types: Sequence[str]) -> Object:
    answer = {"description": "OK", "content": {JSON: {"schema": reference}}}
    operation: Object = {
        "x-kubernetes-action": verb if verb != "create" else "post",
        "x-kubernetes-group-version-kind": identity,
        "responses": {"200": answer},
    }
    if types:
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in _WRITE_OPTIONS
        ]
        operation["requestBody"] = {"content": {kind: {"schema": reference} for kind in types}}
    return operation
