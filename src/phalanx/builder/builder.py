"""Builds the Workload of a tree of items, and plans which objects to write. Nothing is sent.

A controller builds its tree, calls `WorkloadBuilder.validate` when its API admits an object, and
`build` when it reconciles. The Workload is complete and passes the validation of the API server.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from phalanx.api.errors import Cause, Invalid, join_causes, required
from phalanx.api.kinds import WORKLOAD
from phalanx.api.validation.pod_group import COMPOSITE_POD_GROUP_TEMPLATES, POD_GROUP_TEMPLATES
from phalanx.api.wire import Object
from phalanx.builder.config import Gang, Option
from phalanx.builder.ensure import ensure_owned
from phalanx.builder.ensure_plan import EnsurePlan, GroupInstance, ObservedObjects
from phalanx.builder.names import workload_name
from phalanx.builder.ownership import controller_reference
from phalanx.builder.validation import ItemFinding, validate_tree
from phalanx.builder.workload_item import ItemNode, WorkloadItem, resolve_tree

#: The owner of the Workload of a tree that is validated before its owner exists.
_PLACEHOLDER_OWNER: Object = {
    "apiVersion": "v1",
    "kind": "Owner",
    "metadata": {"name": "owner", "namespace": "default", "uid": "uid"},
}


@dataclass(frozen=True, slots=True)
class WorkloadBuilder:
    """Builds the Workload of a tree of items; `allow` lists what the controller supports.

    >>> from phalanx.builder import All, Basic, Gang, SchedulingConfig, Single
    >>> root = WorkloadItem("workers", user=SchedulingConfig(policy=Gang(4)))
    >>> builder = WorkloadBuilder(root, allow=(Basic, Gang, Single, All))
    >>> builder.validate()
    []
    >>> owner = {"apiVersion": "example.com/v1", "kind": "Training",
    ...          "metadata": {"name": "llm", "namespace": "team", "uid": "uid-123"}}
    >>> builder.build(owner)["spec"]["podGroupTemplates"]
    [{'name': 'workers', 'schedulingPolicy': {'gang': {'minCount': 4}}}]
    """

    root: WorkloadItem
    allow: Sequence[Option]

    def validate(self, old: WorkloadItem | None = None) -> list[Cause]:
        """Return the validation errors of the tree, at the fields of the user's object.

        `old` is the tree of the object before an update: errors that it already had are left out.
        Two items are the same if their names are the same, from the root down.
        """
        findings = self._validate_tree(self.root)
        before = [finding.identity for finding in self._validate_tree(old)] if old else []
        return _to_causes(finding for finding in findings if finding.identity not in before)

    def build(self, owner: Object, *, name: str = "", namespace: str = "") -> Object:
        """Build the Workload of an object, controlled by it and in its namespace, or in another.

        An owner without a namespace needs the `namespace` of its pods. Raises Invalid, with a cause
        for each field of the user's object that is wrong.
        """
        tree = resolve_tree(self.root)
        workload = _build_workload(tree, in_namespace(owner, namespace), name)
        causes = _to_causes(validate_tree(tree, workload, self.allow))
        if not workload["metadata"]["namespace"]:
            text = "the owner has none: name the namespace of its pods"
            others = [cause for cause in causes if cause.field != "metadata.namespace"]
            causes = [required("metadata.namespace", text), *others]
        if causes:
            raise invalid_workload(workload["metadata"]["name"], causes)
        return workload

    def ensure(
        self,
        owner: Object,
        observed: ObservedObjects,
        groups: Sequence[GroupInstance] | None = None,
        *,
        manager: str = "",
        is_started: bool = False,
        namespace: str = "",
        replaces_workload: bool = False,
        kept: Collection[str] = (),
    ) -> EnsurePlan:
        """Plan the writes that give an object its Workload and groups; see `ensure`.

        Without `groups` there is one of each template. `namespace` is that of the pods, for an
        owner without one. `manager` is the name of the controller, for the managed-by annotation.
        `is_started` if the object has, or had, pods: its own objects then do not give way to the
        user's. If it `replaces_workload`, its own Workload is deleted and created anew when the
        tree differs in more than sizes; otherwise only sizes follow the tree. `kept` are names of
        groups that stay although they are not wanted. Raises Invalid like `build`, unless the
        Workload exists and is not replaced.

        >>> owner = {"apiVersion": "example.com/v1", "kind": "Training",
        ...          "metadata": {"name": "llm", "namespace": "team", "uid": "uid-123"}}
        >>> from phalanx.builder import Basic
        >>> builder = WorkloadBuilder(WorkloadItem("workers"), allow=[Basic])
        >>> [one.kind.name for one in builder.ensure(owner, ObservedObjects()).operations]
        ['Workload']
        """
        owner = in_namespace(owner, namespace)
        return ensure_owned(
            owner,
            observed,
            groups,
            build=lambda: self.build(owner),
            sizes=self._gang_sizes,
            is_single=not self.root.is_composite,
            manager=manager,
            is_started=is_started,
            replaces_workload=replaces_workload,
            kept=kept,
        )

    def _gang_sizes(self) -> dict[str, int]:
        """The sizes of the gangs, by template."""
        return {
            node.item.name: node.config.policy.min_count
            for node in resolve_tree(self.root).walk()
            if isinstance(node.config.policy, Gang) and node.config.policy.min_count is not None
        }

    def _validate_tree(self, root: WorkloadItem) -> list[ItemFinding]:
        tree = resolve_tree(root)
        return validate_tree(
            tree, _build_workload(tree, _PLACEHOLDER_OWNER, "workload"), self.allow
        )


def in_namespace(owner: Object, namespace: str) -> Object:
    """Return an owner as if it were in a namespace; references to it have none."""
    if not namespace:
        return owner
    return {**owner, "metadata": {**(owner.get("metadata") or {}), "namespace": namespace}}


def _to_causes(findings: Iterable[ItemFinding]) -> list[Cause]:
    return list(dict.fromkeys(finding.to_cause() for finding in findings))


def _build_workload(tree: ItemNode, owner: Object, name: str) -> Object:
    reference = controller_reference(owner)
    group, _, _ = reference["apiVersion"].rpartition("/")
    controller = {"apiGroup": group, "kind": reference["kind"], "name": reference["name"]}
    field = COMPOSITE_POD_GROUP_TEMPLATES if tree.item.is_composite else POD_GROUP_TEMPLATES
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.name,
        "metadata": {
            "name": name or workload_name(reference["name"], reference["uid"]),
            "namespace": owner.get("metadata", {}).get("namespace", ""),
            "ownerReferences": [reference],
        },
        "spec": {"controllerRef": controller, field: [tree.to_template()]},
    }


def invalid_workload(name: str, causes: Sequence[Cause]) -> Invalid:
    """Build the error for a Workload that cannot be built."""
    return Invalid(
        f'{WORKLOAD.qualified_name} "{name}" is invalid: {join_causes(causes)}',
        name=name,
        group=WORKLOAD.group,
        kind=WORKLOAD.name,
        causes=causes,
    )
