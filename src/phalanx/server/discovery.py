"""What is served, told to clients: groups, versions, resources, schemas. All from the rows of
kinds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import orjson

from phalanx.api.custom.kinds import CustomKind
from phalanx.api.definitions import full_name
from phalanx.api.kinds import Kind
from phalanx.api.openapi import openapi, references
from phalanx.api.wire import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Object,
)
from phalanx.server.registry import Registry

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
_AGGREGATED = "apidiscovery.k8s.io"


def api_versions() -> Object:
    """`/api`."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(registry: Registry) -> Object:
    """`/apis`."""
    groups = [_group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: Registry, name: str) -> Object | None:
    """`/apis/{group}`."""
    versions = registry.groups().get(name)
    if not name or versions is None:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def _group(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(registry: Registry, group: str, version: str) -> Object | None:
    """`/api/v1`, `/apis/{group}/{version}`."""
    served = registry.of(group, version)
    if not served:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": [entry for kind in served for entry in _resources(kind)],
    }


def _resources(kind: Kind) -> list[Object]:
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
    return [entry, *(_subresource(kind, name) for name in kind.subresources)]


def _subresource(kind: Kind, name: str) -> Object:
    other, group, version, verbs = SUBRESOURCES[name]
    entry: Object = {
        "name": f"{kind.plural}/{name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": other or kind.name,
        "verbs": list(verbs),
    }
    return {**entry, "group": group, "version": version} if group else entry


def aggregated(registry: Registry, *, core: bool, version: str) -> Object:
    """`/api` or `/apis` in one document, as newer clients ask for it."""
    items = [
        {"metadata": {"name": group} if group else {}, "versions": _versions(registry, group)}
        for group in registry.groups()
        if core == (not group)
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"{_AGGREGATED}/{version}",
        "metadata": {},
        "items": items,
    }


def _versions(registry: Registry, group: str) -> list[Object]:
    return [
        {
            "version": version,
            "resources": [_aggregated_resource(kind) for kind in registry.of(group, version)],
            "freshness": "Current",
        }
        for version in registry.groups()[group]
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
        entry["subresources"] = [_aggregated_part(kind, name) for name in kind.subresources]
    return entry


def _aggregated_part(kind: Kind, name: str) -> Object:
    other, group, version, verbs = SUBRESOURCES[name]
    response = {"group": group, "version": version, "kind": other or kind.name}
    return {"subresource": name, "responseKind": response, "verbs": list(verbs)}


def openapi_index(registry: Registry) -> Object:
    """`/openapi/v3`: where each document is, with a hash so that clients can keep it."""
    paths: Object = {}
    for group, versions in registry.groups().items():
        for version in versions:
            place = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(openapi_document(registry, group, version)).hexdigest().upper()
            paths[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
    return {"paths": paths}


def openapi_document(registry: Registry, group: str, version: str) -> bytes:
    """The OpenAPI v3 document of one group version; made once, when first asked for."""
    return _document(tuple(registry.of(group, version)))


@lru_cache(maxsize=256)
def _document(served: tuple[Kind, ...]) -> bytes:
    return orjson.dumps({
        "openapi": "3.0.0",
        "info": {"title": "Phalanx", "version": "v1"},
        "paths": {path: item for kind in served for path, item in _paths(kind).items()},
        "components": {"schemas": _schemas(served)},
    })  # fmt: skip


def _schemas(served: Sequence[Kind]) -> Object:
    """All schemas that these kinds lead to, by full name."""
    roots = [k.schema for k in served if not k.is_custom]
    custom = [k for k in served if isinstance(k, CustomKind)]
    roots += ["meta.v1.ObjectMeta", "meta.v1.ListMeta"] if custom else []
    names = sorted({name for root in roots for name in references(root)})
    schemas: Object = {full_name(name): openapi(name) for name in names}
    for kind in custom:
        schemas |= kind.components
    return schemas


def swagger(registry: Registry, *, protobuf: bool = False) -> bytes:
    """`/openapi/v2`: all in one document, for clients that know no newer form."""
    return _swagger(tuple(registry.kinds), protobuf)


@lru_cache(maxsize=2)
def _swagger(served: tuple[Kind, ...], protobuf: bool) -> bytes:
    # Few ask for it: whoever does not need not load what makes it.
    from phalanx.api.swagger import document
    from phalanx.api.swaggermessages import encoded

    paths = {path: item for kind in served for path, item in _paths(kind).items()}
    made = document("Phalanx", _schemas(served), paths)
    return encoded(made) if protobuf else orjson.dumps(made)


def _paths(kind: Kind) -> Object:
    collection = kind.path("{namespace}")
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
    own = next(iter(kind.components)) if isinstance(kind, CustomKind) else full_name(kind.schema)
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
