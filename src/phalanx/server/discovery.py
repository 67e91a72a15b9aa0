"""The kinds that a server serves, and how clients discover them: groups, versions, OpenAPI.

`KindRegistry` holds the built-in kinds and those of CustomResourceDefinitions
(`custom_resources.py` keeps it up to date). The functions below it build the documents of `/api`,
`/apis` and `/openapi/v3` from its rows.
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

#: A kind and the strategy for its objects.
ServedKind = tuple[Kind, ResourceStrategy]


class KindRegistry:
    """The served kinds and their strategies: built-in kinds first, then custom ones."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._built_in: dict[Kind, ResourceStrategy] = {
            kind: BuiltinStrategy(kind) for kind in kinds
        }
        self._custom: dict[str, dict[Kind, ResourceStrategy]] = {}
        self._rebuild()

    def define(self, name: str, rows: Sequence[ServedKind]) -> None:
        """Serve the kinds of a CustomResourceDefinition instead of its previous ones."""
        self._custom.pop(name, None)
        if rows:
            self._custom[name] = dict(rows)
        self._rebuild()

    def built_in_versions(self) -> list[tuple[str, str]]:
        """Return the groups and versions of the built-in kinds, in the order of discovery."""
        return list(dict.fromkeys((kind.group, kind.version) for kind in self._built_in))

    def set_strategy(self, kind: Kind, strategy: ResourceStrategy) -> None:
        """Replace the strategy of a built-in kind."""
        self._built_in[kind] = strategy
        self._rebuild()

    def _rebuild(self) -> None:
        self._strategies = dict(self._built_in)
        for _, rows in sorted(self._custom.items()):
            self._strategies |= {
                kind: strategy
                for kind, strategy in rows.items()
                if not self.is_built_in(kind.group, kind.plural)
            }
        self.kinds = tuple(self._strategies)
        self._by_path = {(k.group, k.version, k.plural): k for k in reversed(self.kinds)}
        self._versions = {(k.group, k.version): None for k in self.kinds}

    @property
    def built_in(self) -> tuple[Kind, ...]:
        """The built-in kinds."""
        return tuple(self._built_in)

    def is_built_in(self, group: str, plural: str) -> bool:
        """Whether a resource is built in, in any version."""
        return any((kind.group, kind.plural) == (group, plural) for kind in self._built_in)

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind that is served at a group, version and plural."""
        return self._by_path.get((group, version, plural))

    def strategy(self, kind: Kind) -> ResourceStrategy:
        """The strategy of a kind: defaults, validation, warnings."""
        return self._strategies.get(kind) or BuiltinStrategy(kind)

    def serves(self, group: str, version: str) -> bool:
        """Whether a group version is served."""
        return (group, version) in self._versions

    def kinds_in(self, group: str, version: str) -> list[Kind]:
        """All kinds of a group version."""
        return [k for k in self.kinds if (k.group, k.version) == (group, version)]

    def versions_by_group(self) -> dict[str, list[str]]:
        """The versions of each group, in the order in which clients should prefer them."""
        groups: dict[str, list[str]] = {}
        for group, version in self._versions:
            groups.setdefault(group, []).append(version)
        return {group: sorted(versions, key=version_rank) for group, versions in groups.items()}


_STATUS_VERBS = ("get", "patch", "update")
#: Subresource -> name, group, version of the kind that it takes ("": as the object), and verbs.
SUBRESOURCES = {
    "status": ("", "", "", _STATUS_VERBS),
    "approval": ("", "", "", _STATUS_VERBS),
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
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def resource_list(registry: KindRegistry, group: str, version: str) -> Object | None:
    """`/api/v1`, `/apis/{group}/{version}`."""
    served = registry.kinds_in(group, version)
    if not served:
        return None
    return {
        "kind": "APIResourceList",
        # Kubernetes leaves it out for the core group.
        **({"apiVersion": "v1"} if group else {}),
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


def build_aggregated_discovery(registry: KindRegistry, *, core: bool, version: str) -> Object:
    """`/api` or `/apis` as one document with all resources."""
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": [
                {
                    "version": name,
                    "resources": [
                        _build_aggregated_resource(kind) for kind in registry.kinds_in(group, name)
                    ],
                    "freshness": "Current",
                }
                for name in versions
            ],
        }
        for group, versions in registry.versions_by_group().items()
        if core == (not group)
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"{_AGGREGATED_DISCOVERY_GROUP}/{version}",
        "metadata": {},
        "items": items,
    }


def _build_aggregated_resource(kind: Kind) -> Object:
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
    subresources = []
    for name in kind.subresources:
        other, group, version, verbs = SUBRESOURCES[name]
        response = {"group": group, "version": version, "kind": other or kind.name}
        subresources.append({"subresource": name, "responseKind": response, "verbs": list(verbs)})
    if subresources:
        entry["subresources"] = subresources
    return entry


def openapi_index(registry: KindRegistry) -> Object:
    """`/openapi/v3`: the URL of each document, with a hash that lets clients cache it."""
    paths: Object = {}
    for group, versions in registry.versions_by_group().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(openapi_document(registry, group, version)).hexdigest().upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def openapi_document(registry: KindRegistry, group: str, version: str) -> bytes:
    """The OpenAPI v3 document of one group version; built at the first request."""
    return _openapi_v3_document(tuple(registry.kinds_in(group, version)))


@lru_cache(maxsize=256)
def _openapi_v3_document(served: tuple[Kind, ...]) -> bytes:
    document = {
        "openapi": "3.0.0",
        "info": {"title": "Phalanx", "version": "v1"},
        "paths": {path: item for kind in served for path, item in _openapi_paths(kind).items()},
        "components": {"schemas": _component_schemas(served)},
    }
    return orjson.dumps(document)


def _component_schemas(served: Sequence[Kind]) -> Object:
    """The schemas that these kinds refer to, by full name."""
    roots = [k.schema for k in served if not k.is_custom]
    custom = [k for k in served if isinstance(k, CustomKind)]
    roots += ["meta.v1.ObjectMeta", "meta.v1.ListMeta"] if custom else []
    names = sorted({name for root in roots for name in references(root)})
    schemas: Object = {full_definition_name(name): openapi_schema(name) for name in names}
    for kind in custom:
        schemas |= kind.components
    return schemas


def _openapi_paths(kind: Kind) -> Object:
    collection = kind.url_path("{namespace}")
    paths: Object = {
        collection: _operations(kind, ("get", "list"), ("post", "create")),
        f"{collection}/{{name}}": _operations(
            kind, ("get", "get"), ("put", "update"), ("patch", "patch"), ("delete", "delete")
        ),
    }
    return {path: item for path, item in paths.items() if item}


#: kubectl reads from these whether the server supports field validation and dry run.
_WRITE_OPTIONS = ("dryRun", "fieldManager", "fieldValidation")
_PATCH_TYPES = (APPLY_PATCH, JSON_PATCH, MERGE_PATCH)


def _operations(kind: Kind, *pairs: tuple[str, str]) -> Object:
    identity = {"group": kind.group, "version": kind.version, "kind": kind.name}
    if isinstance(kind, CustomKind):
        schema = next(iter(kind.components))
    else:
        schema = full_definition_name(kind.schema)
    reference = {"$ref": f"#/components/schemas/{schema}"}
    # Custom resources have no merge keys for a strategic merge patch.
    patches = _PATCH_TYPES if kind.is_custom else (*_PATCH_TYPES, STRATEGIC_PATCH)
    types = {"post": (JSON,), "put": (JSON,), "patch": patches}
    return {
        method: _operation(verb, identity, reference, body_types=types.get(method, ()))
        for method, verb in pairs
        if verb in kind.verbs
    }


def _operation(
    verb: str, identity: Object, reference: Object, *, body_types: Sequence[str]
) -> Object:
    response = {"description": "OK", "content": {JSON: {"schema": reference}}}
    operation: Object = {
        "x-kubernetes-action": verb if verb != "create" else "post",
        "x-kubernetes-group-version-kind": identity,
        "responses": {"200": response},
    }
    if body_types:
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in _WRITE_OPTIONS
        ]
        operation["requestBody"] = {"content": {kind: {"schema": reference} for kind in body_types}}
    return operation
