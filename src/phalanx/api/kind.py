"""Kind: one row of the table of kinds, and its columns.

`kinds.py` and `platform_kinds.py` have the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
METADATA_SELECTORS = {"metadata.name": "", "metadata.namespace": ""}


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """The paths of the desired replicas, the current replicas and the selector of the scale
    subresource.

    The selector is text or a label selector; with `selects_by_labels` it is a map of labels.
    """

    spec_replicas: tuple[str, ...]
    status_replicas: tuple[str, ...]
    selector: tuple[str, ...] = ()
    selects_by_labels: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind in one version; compared by identity.

    `selectable_fields` maps each field selector to the value of an absent field;
    `selectable_field_paths` maps a selector to its path where they differ. A change of one of the
    `generation_fields` increases the `generation`, if the kind has one. With
    `orphans_by_default`, deleting an owner orphans its dependents unless the client says otherwise.
    With `status_updates_metadata`, a write of the status may change labels, annotations, finalizers
    and owners too; Kubernetes forbids it for its newer kinds and for custom resources. Objects of a
    kind with `ignores_propagation` are deleted at once, whatever happens to their dependents.
    Clients of a kind with `deprecation` get it as a warning, and creators of an object with
    `has_no_controller` get a warning that no controller acts on it.
    """

    group: str
    version: str
    name: str
    plural: str
    schema: str
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[str, ...] = ()
    selectable_fields: Mapping[str, str] = field(default_factory=lambda: METADATA_SELECTORS)
    selectable_field_paths: Mapping[str, str] = field(default_factory=dict)
    generation: bool = False
    generation_fields: tuple[str, ...] = ("spec",)
    create_on_update: bool = False
    update_without_version: bool = True
    deletion_returns_object: bool = False
    orphans_by_default: bool = False
    deprecation: str = ""
    scale: ScalePaths | None = None
    has_no_controller: bool = False
    status_updates_metadata: bool = True
    ignores_propagation: bool = False

    @property
    def is_custom(self) -> bool:
        """Whether a CustomResourceDefinition defines it."""
        return False

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The resource in messages: `pods`, `podgroups.scheduling.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_name(self) -> str:
        """The kind in messages: `Pod`, `PodGroup.scheduling.k8s.io`."""
        return f"{self.name}.{self.group}" if self.group else self.name

    @property
    def list_name(self) -> str:
        """The kind of its lists."""
        return f"{self.name}List"

    def with_version(self, version: str) -> Kind:
        """Return the same kind in another version of its group; both share the stored objects."""
        other = self.schema.replace(f".{self.version}.", f".{version}.")
        return replace(self, version=version, schema=other)

    def with_deprecated_version(self, version: str) -> Kind:
        """Return the same kind in a deprecated version; its warning recommends this one."""
        named = f"{self.group}/{version} {self.name}"
        advice = f"{named} is deprecated; use {self.api_version} {self.name}"
        return replace(self.with_version(version), deprecation=advice)

    def store_prefix(self, namespace: str = "") -> str:
        """Return the prefix of the store keys of all objects, or of those of one namespace."""
        base = _store_base(self.group, self.plural)
        return f"{base}{namespace}/" if namespace else base

    def store_key(self, namespace: str, name: str) -> str:
        """Return the store key of an object."""
        return self.store_prefix(namespace if self.namespaced else "") + name

    def url_path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, of an object, or of a subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        space = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        parts = [part for part in (self.plural, name, subresource) if part]
        return f"{root}{space}/{'/'.join(parts)}"


@lru_cache(maxsize=1024)
def _store_base(group: str, plural: str) -> str:
    return f"/{group or 'core'}/{plural}/"
