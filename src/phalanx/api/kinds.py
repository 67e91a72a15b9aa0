"""One row per kind: where it is served, what can be done with it, how it behaves.

The server is generic and walks these rows; a new kind is a new row and no code path. Defaults,
rules and columns of a kind are rows of their own, found by its name (`defaults.py`, `rules.py`,
`columns.py`). Says nothing about how an object is stored or sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
META_FIELDS = {"metadata.name": "", "metadata.namespace": ""}


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind of object, equal to itself alone.

    `fields` maps each field selector to the value that an absent field has.
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
    fields: Mapping[str, str] = field(default_factory=lambda: META_FIELDS)
    generation: bool = False
    create_on_update: bool = False
    update_without_version: bool = True
    deletion_returns_object: bool = False
    orphans_by_default: bool = False

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """How messages call it: `pods`, `podgroups.scheduling.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified(self) -> str:
        """How messages call an object of it: `Pod`, `PodGroup.scheduling.k8s.io`."""
        return f"{self.name}.{self.group}" if self.group else self.name

    @property
    def list_name(self) -> str:
        """The kind of a list of them."""
        return f"{self.name}List"

    def prefix(self, namespace: str = "") -> str:
        """The store keys of all of them, or of one namespace's, begin with this."""
        base = f"/{self.group or 'core'}/{self.plural}/"
        return f"{base}{namespace}/" if namespace else base

    def key(self, namespace: str, name: str) -> str:
        """The store key of one."""
        return self.prefix(namespace if self.namespaced else "") + name

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, of one, or of a part of one."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        space = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        parts = [part for part in (self.plural, name, subresource) if part]
        return f"{root}{space}/{'/'.join(parts)}"


NAMESPACE = Kind(
    "", "v1", "Namespace", "namespaces", "core.v1.Namespace",
    namespaced=False, singular="namespace", short_names=("ns",),
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    subresources=("status", "finalize"),
    fields={"metadata.name": "", "status.phase": ""},
    deletion_returns_object=True,
)  # fmt: skip
NODE = Kind(
    "", "v1", "Node", "nodes", "core.v1.Node",
    namespaced=False, singular="node", short_names=("no",),
    subresources=("status",),
    fields={"metadata.name": "", "spec.unschedulable": "false"},
)  # fmt: skip
POD = Kind(
    "", "v1", "Pod", "pods", "core.v1.Pod",
    singular="pod", short_names=("po",), categories=("all",),
    subresources=("status", "binding"),
    fields={
        **META_FIELDS, "spec.nodeName": "", "spec.restartPolicy": "", "spec.schedulerName": "",
        "spec.serviceAccountName": "", "spec.hostNetwork": "false", "status.phase": "",
        "status.podIP": "", "status.nominatedNodeName": "",
    },
    generation=True, deletion_returns_object=True,
)  # fmt: skip
CONFIG_MAP = Kind(
    "", "v1", "ConfigMap", "configmaps", "core.v1.ConfigMap",
    singular="configmap", short_names=("cm",),
)  # fmt: skip
EVENT = Kind(
    "", "v1", "Event", "events", "core.v1.Event",
    singular="event", short_names=("ev",),
    fields={
        **META_FIELDS, "involvedObject.kind": "", "involvedObject.namespace": "",
        "involvedObject.name": "", "involvedObject.uid": "", "involvedObject.apiVersion": "",
        "involvedObject.resourceVersion": "", "involvedObject.fieldPath": "", "reason": "",
        "reportingComponent": "", "source": "", "type": "",
    },
    create_on_update=True,
)  # fmt: skip
LEASE = Kind(
    "coordination.k8s.io", "v1", "Lease", "leases", "coordination.v1.Lease",
    singular="lease", create_on_update=True, update_without_version=False,
)  # fmt: skip
PRIORITY_CLASS = Kind(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "scheduling.v1.PriorityClass",
    namespaced=False, singular="priorityclass", short_names=("pc",),
    fields={"metadata.name": ""}, generation=True,
)  # fmt: skip
POD_GROUP = Kind(
    "scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups", "scheduling.v1beta1.PodGroup",
    singular="podgroup", subresources=("status",), update_without_version=False,
)  # fmt: skip
GROUP_BINDING = Kind(
    "phalanx.dev", "v1alpha1", "GroupBinding", "groupbindings", "phalanx.v1alpha1.GroupBinding",
    singular="groupbinding", verbs=("create",),
)  # fmt: skip
BINDING = Kind(
    "", "v1", "Binding", "bindings", "core.v1.Binding",
    singular="binding", verbs=("create",),
)  # fmt: skip

#: Every kind that is served, in the order of discovery.
KINDS = (
    BINDING, CONFIG_MAP, EVENT, NAMESPACE, NODE, POD, LEASE, PRIORITY_CLASS, POD_GROUP,
    GROUP_BINDING,
)  # fmt: skip
