"""From a tree of items to a Workload: the only place where one is made.

A controller builds its tree, asks `validate` where its API accepts objects, and `build` where it
reconciles. The Workload is complete and passes the rules of the API server; it is not sent
anywhere. What is made of it then, `groups.py` knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phalanx.api.errors import Cause, Invalid, sentence
from phalanx.api.kinds import WORKLOAD
from phalanx.api.rules.workload import COMPOSITES, LEAVES
from phalanx.api.wire import Object
from phalanx.builder.config import Option
from phalanx.builder.faults import Finding, find
from phalanx.builder.item import WorkloadItem
from phalanx.builder.names import workload_name
from phalanx.builder.owners import controller_reference
from phalanx.builder.tree import Node, grow

#: Stands for the owner where a tree is judged before there is one.
_SOMEBODY: Object = {
    "apiVersion": "v1", "kind": "Owner",
    "metadata": {"name": "owner", "namespace": "default", "uid": "uid"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkloadBuilder:
    """Makes the Workload of a tree of items; `allow` is all that its controller supports.

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
        """What is wrong, at the fields of the user's object.

        With the tree of the object before an update, what was wrong with it already is let be;
        items are the same if their names are, from the root down.
        """
        found = self._find(self.root)
        before = [finding.identity for finding in self._find(old)] if old else []
        return _told(finding for finding in found if finding.identity not in before)

    def build(self, owner: Object, *, name: str = "") -> Object:
        """The Workload of an object, in its namespace and owned by it.

        Raises Invalid, with a cause per field of the user's object, if there is anything wrong.
        """
        tree = grow(self.root)
        workload = _workload(tree, owner, name)
        if causes := _told(find(tree, workload, self.allow)):
            raise refusal(workload["metadata"]["name"], causes)
        return workload

    def _find(self, root: WorkloadItem) -> list[Finding]:
        tree = grow(root)
        return find(tree, _workload(tree, _SOMEBODY, "workload"), self.allow)


def _told(findings: Iterable[Finding]) -> list[Cause]:
    return list(dict.fromkeys(finding.told() for finding in findings))


def _workload(tree: Node, owner: Object, name: str) -> Object:
    reference = controller_reference(owner)
    group, _, _ = reference["apiVersion"].rpartition("/")
    controller = {"apiGroup": group, "kind": reference["kind"], "name": reference["name"]}
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.name,
        "metadata": {
            "name": name or workload_name(reference["name"], reference["uid"]),
            "namespace": owner.get("metadata", {}).get("namespace", ""),
            "ownerReferences": [reference],
        },
        "spec": {
            "controllerRef": controller,
            COMPOSITES if tree.item.is_composite else LEAVES: [tree.template()],
        },
    }


def refusal(name: str, causes: Sequence[Cause]) -> Invalid:
    """Why there cannot be a Workload."""
    return Invalid(
        f'{WORKLOAD.qualified} "{name}" is invalid: {sentence(causes)}',
        name=name,
        group=WORKLOAD.group,
        kind=WORKLOAD.name,
        causes=causes,
    )
