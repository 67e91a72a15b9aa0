"""The tree of groups of a JobSet or LeaderWorkerSet, as `phalanx why` shows it.

    LeaderWorkerSet default/llm: 1 of 2 groups placed
      GROUP                        ROLE      PLACED   PENDING   STATE
      llm-5c9b8d-0-7f4d            replica        3         0   placed
      llm-5c9b8d-1-7f4d            replica        0         3   Unschedulable

The role of a group is the name of its template. Groups below a CompositePodGroup are indented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.api.core import Pod
from phalanx.api.kinds import JOB_SET, LEADER_WORKER_SET
from phalanx.api.meta import Key, Ref
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.cli.cluster_queries import SubjectQuery
from phalanx.library import Cluster
from phalanx.scheduler.diagnosis.diagnosis import PLACED, Diagnosis

#: The kinds whose groups are shown as a tree.
TREE_KINDS = (JOB_SET, LEADER_WORKER_SET)
_HEADER = ("GROUP", "ROLE", "PLACED", "PENDING", "STATE")
_Group = PodGroup | CompositePodGroup


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of a tree: its level, its role, and the number of its placed and pending pods."""

    level: int
    kind: str
    name: str
    role: str
    placed: int
    pending: int
    state: str

    @property
    def data(self) -> dict[str, Any]:
        """The row for JSON and YAML."""
        return {
            "level": self.level,
            "kind": self.kind,
            "name": self.name,
            "role": self.role,
            "placed": self.placed,
            "pending": self.pending,
            "state": self.state,
        }


def build_tree(
    cluster: Cluster, subject: SubjectQuery, diagnoses: Mapping[Ref, Diagnosis]
) -> list[GroupRow]:
    """Return the rows of the groups of a subject, parents before their children."""
    if subject.kind not in TREE_KINDS:
        return []
    groups = [
        group
        for group in cluster.objects.groups
        if group.metadata.namespace == subject.key.namespace
    ]
    pods: dict[Key, list[Pod]] = {}
    for pod in cluster.objects.pods:
        if pod.group is not None and not pod.is_terminal:
            pods.setdefault(pod.group, []).append(pod)
    return [
        row
        for ref, diagnosis in diagnoses.items()
        for row in _walk(ref, groups, pods, diagnosis=diagnosis, level=0)
    ]


def _walk(
    ref: Ref,
    groups: Sequence[_Group],
    pods: Mapping[Key, Sequence[Pod]],
    *,
    diagnosis: Diagnosis,
    level: int,
) -> Iterator[GroupRow]:
    group = next((one for one in groups if _ref(one) == ref), None)
    if group is None:
        return
    below = [
        list(_walk(_ref(one), groups, pods, diagnosis=diagnosis, level=level + 1))
        for one in groups
        if isinstance(group, CompositePodGroup)
        and one.spec.parent_composite_pod_group_name == ref.name
    ]
    if isinstance(group, CompositePodGroup):
        placed, pending = (sum(getattr(rows[0], name) for rows in below if rows)
                           for name in ("placed", "pending"))  # fmt: skip
    else:
        members = pods.get(ref.key, ())
        placed = sum(bool(pod.occupied_node) for pod in members)
        pending = len(members) - placed
    reference = group.spec.workload_ref
    role = reference.template_name if reference else ""
    state = _state(ref, diagnosis, is_complete=bool(placed) and not pending, is_root=level == 0)
    yield GroupRow(level, ref.kind, ref.name, role, placed, pending, state)
    for rows in below:
        yield from rows


def _state(ref: Ref, diagnosis: Diagnosis, *, is_complete: bool, is_root: bool) -> str:
    if is_complete or (is_root and diagnosis.state == PLACED):
        return "placed"
    reason = next((one.reason for one in diagnosis.groups if one.ref == ref), "")
    return reason or diagnosis.state


def _ref(group: _Group) -> Ref:
    kind = "CompositePodGroup" if isinstance(group, CompositePodGroup) else "PodGroup"
    return Ref(kind, group.metadata.namespace, group.metadata.name)


def format_tree(subject: SubjectQuery, rows: Sequence[GroupRow]) -> str:
    """Format the rows as a table, with a headline."""
    roots = [row for row in rows if row.level == 0]
    placed = sum(row.state == "placed" for row in roots)
    head = f"{subject.kind.name} {subject.key}: {placed} of {len(roots)} groups placed"
    cells = [
        ("  " * row.level + row.name, row.role, str(row.placed), str(row.pending), row.state)
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(_HEADER, *cells, strict=True)]
    lines = [
        "  "
        + "   ".join(
            [
                name.ljust(widths[0]),
                role.ljust(widths[1]),
                done.rjust(widths[2]),
                open_pods.rjust(widths[3]),
                state,
            ]
        )
        for name, role, done, open_pods, state in (_HEADER, *cells)
    ]
    return "\n".join([head, *lines])
