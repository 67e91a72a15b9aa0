"""The events of a scenario: one frozen class and one row of EVENT_READERS each.

`scenario` reads them, `driver` executes them. Names are checked here: an event may only refer to
objects of earlier events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.api.core import Taint
from phalanx.controllers.nodes.node_pool import DEFAULT_CAPACITY
from phalanx.sim.fields import (
    InvalidScenario,
    ScenarioFields,
    read_count,
    read_flag,
    read_integer,
    read_labels,
    read_mapping,
    read_name,
    read_one_or_many,
    read_resources,
    read_taint,
    read_text,
    read_whole_seconds,
)


@dataclass(frozen=True, slots=True)
class ScenarioNode:
    """A node: name, resources, labels and taints."""

    name: str
    allocatable: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class ScenarioPodTemplate:
    """The template of pods. Without `run_seconds` a pod runs until it is finished by an event.

    `spec` holds all other fields, as in a manifest.
    """

    requests: Mapping[str, str]
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Taint, ...] = ()
    run_seconds: int | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    spec: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatePods:
    """Create pods: members of a gang, whether or not its PodGroup exists, or single pods."""

    names: tuple[str, ...]
    template: ScenarioPodTemplate
    gang: str = ""


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Fields of a group other than its members: parent, topology, disruption mode."""

    parent: str = ""
    #: The label whose value all nodes of the group must share, and the one that they should share.
    topology: str = ""
    preferred_topology: str = ""
    #: Whether the disruption mode is All.
    evict_whole: bool = False


@dataclass(frozen=True, slots=True)
class CreateGang:
    """Create a PodGroup and its first members. Without `min_count` it is basic."""

    name: str
    min_count: int | None
    pods: CreatePods
    options: GroupOptions = GroupOptions()


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create a PodGroup, or create it again, without members."""

    name: str
    min_count: int | None
    priority: int = 0
    options: GroupOptions = GroupOptions()


@dataclass(frozen=True, slots=True)
class CreateCompositePodGroup:
    """Create a CompositePodGroup that needs `min_group_count` child groups; without it, basic."""

    name: str
    min_group_count: int | None
    priority: int = 0
    options: GroupOptions = GroupOptions()


@dataclass(frozen=True, slots=True)
class CreateManifest:
    """Create any other object from a manifest."""

    manifest: Mapping[str, object]


class EventTarget(NamedTuple):
    """A gang with all its pods, or a single pod."""

    name: str
    is_gang: bool


@dataclass(frozen=True, slots=True)
class FinishPods:
    """Finish the running pods of a target successfully."""

    target: EventTarget


@dataclass(frozen=True, slots=True)
class DeleteTarget:
    """Delete a target."""

    target: EventTarget


@dataclass(frozen=True, slots=True)
class RemoveSchedulingGates:
    """Remove the scheduling gates of a target."""

    target: EventTarget


@dataclass(frozen=True, slots=True)
class ForceDeleteGroup:
    """Delete a PodGroup in use: remove its protection finalizer."""

    name: str


@dataclass(frozen=True, slots=True)
class SetMinCount:
    """Change the minCount of a gang."""

    gang: str
    min_count: int


@dataclass(frozen=True, slots=True)
class SetMembersToRun:
    """Set the annotation that says how many members the gang's controller will still run."""

    gang: str
    members: int


@dataclass(frozen=True, slots=True)
class CordonNode:
    """Cordon or uncordon a node."""

    node: str
    cordoned: bool


@dataclass(frozen=True, slots=True)
class AddNodes:
    """Add nodes."""

    nodes: tuple[ScenarioNode, ...]


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Remove a node and its pods."""

    node: str


ScenarioEvent = (
    CreateGang
    | CreatePodGroup
    | CreateCompositePodGroup
    | CreateManifest
    | CreatePods
    | FinishPods
    | DeleteTarget
    | RemoveSchedulingGates
    | ForceDeleteGroup
    | SetMinCount
    | SetMembersToRun
    | CordonNode
    | AddNodes
    | RemoveNode
)


class ScenarioNames:
    """The names that a scenario has introduced so far."""

    def __init__(self) -> None:
        self._gangs: dict[str, ScenarioPodTemplate] = {}
        self._members: dict[str, int] = {}
        self._pods: dict[str, None] = {}
        self._nodes: dict[str, None] = {}
        self._node_counts: dict[str, int] = {}

    def add_gang(self, path: str, new: str, template: ScenarioPodTemplate) -> None:
        """Introduce a gang."""
        _check_unused(path, new, self._gangs)
        self._gangs[new] = template

    def has_gang(self, gang: str) -> bool:
        """Whether a gang was introduced, if only by its members."""
        return gang in self._gangs

    def add_members(self, path: str, gang: str, more: int) -> tuple[str, ...]:
        """Introduce the next members of a gang; return their names."""
        first = self._members.get(gang, 0)
        self._members[gang] = first + more
        names = tuple(f"{gang}-{number}" for number in range(first, first + more))
        for pod in names:
            self.add_pod(path, pod)
        return names

    def add_pod(self, path: str, new: str) -> None:
        """Introduce a pod."""
        _check_unused(path, new, self._pods)
        self._pods[new] = None

    def add_nodes(self, path: str, prefix: str, more: int | None) -> tuple[str, ...]:
        """Introduce a node, or numbered nodes of this name."""
        names = [prefix]
        if more is not None:
            first = self._node_counts.get(prefix, 0)
            self._node_counts[prefix] = first + more
            width = len(str(first + more - 1))
            names = [f"{prefix}-{number:0{width}}" for number in range(first, first + more)]
        for node in names:
            _check_unused(path, node, self._nodes)
            self._nodes[node] = None
        return tuple(names)

    def gang_template(self, gang: str) -> ScenarioPodTemplate:
        """Return the template of the first pods of a gang."""
        return self._gangs[gang]

    def find_target(self, path: str, found: object) -> EventTarget:
        """Return an introduced gang or pod."""
        name = _find_name([*self._gangs, *self._pods], "a gang or a pod", path, found=found)
        return EventTarget(name, name in self._gangs)

    def find_gang(self, path: str, found: object) -> str:
        """Return an introduced gang."""
        return _find_name(self._gangs, "a gang", path, found=found)

    def find_node(self, path: str, found: object) -> str:
        """Return an introduced node."""
        return _find_name(self._nodes, "a node", path, found=found)


def _check_unused(path: str, new: str, taken: Iterable[str]) -> None:
    if new in taken:
        raise InvalidScenario(path, "a name that was not used before", new)


def _find_name(known: Iterable[str], what: str, path: str, *, found: object) -> str:
    if not isinstance(found, str) or found not in known:
        raise InvalidScenario(path, f"{what} that came before", found)
    return found


def read_event(known: ScenarioNames, path: str, found: object) -> ScenarioEvent:
    """Read one event, recognised by the entry that names it."""
    fields = ScenarioFields(path, found)
    kinds = [key for key in EVENT_READERS if key in fields]
    if len(kinds) != 1:
        raise InvalidScenario(path, f"exactly one of {', '.join(EVENT_READERS)}", found)
    event = EVENT_READERS[kinds[0]](fields, known)
    fields.reject_unread()
    return event


def read_nodes(known: ScenarioNames, path: str, found: object) -> tuple[ScenarioNode, ...]:
    """Read one group of equal nodes, or a list of groups."""
    groups = read_one_or_many(lambda at, group: _read_nodes(known, ScenarioFields(at, group)))(
        path, found
    )
    return tuple(node for group in groups for node in group)


def _read_nodes(known: ScenarioNames, fields: ScenarioFields) -> tuple[ScenarioNode, ...]:
    prefix = fields.get("name", read_name, "node")
    number = fields.get("count", read_count, None if "name" in fields else 1)
    allocatable = {**DEFAULT_CAPACITY, **fields.get("each", read_resources, _NO_ENTRIES)}
    labels, taints = (
        fields.get("labels", read_labels, _NO_ENTRIES),
        fields.get("taints", read_one_or_many(read_taint), ()),
    )
    fields.reject_unread()
    names = known.add_nodes(fields.path, prefix, number)
    return tuple(
        ScenarioNode(node, allocatable=allocatable, labels=labels, taints=taints) for node in names
    )


_NO_ENTRIES: dict[str, str] = {}


def _read_template(fields: ScenarioFields, default: ScenarioPodTemplate) -> ScenarioPodTemplate:
    return ScenarioPodTemplate(
        fields.get("each", read_resources, default.requests),
        selector=fields.get("where", read_labels, default.selector),
        tolerations=fields.get("tolerates", read_one_or_many(read_taint), default.tolerations),
        run_seconds=fields.get("run", read_whole_seconds, default.run_seconds),
        priority=fields.get("priority", read_integer, default.priority),
        labels=fields.get("labels", read_labels, default.labels),
        gates=fields.get("gates", read_one_or_many(read_name), default.gates),
        spec=fields.get("spec", read_mapping, default.spec),
    )


_EMPTY_TEMPLATE = ScenarioPodTemplate({})


def _read_gang(fields: ScenarioFields, known: ScenarioNames) -> CreateGang:
    quorum = _read_min_count(fields, fields.require("pods", read_count))
    members = _read_members(fields, known, "gang")
    return CreateGang(members.gang, quorum, members, options=_read_group_options(fields))


def _read_group_options(fields: ScenarioFields) -> GroupOptions:
    return GroupOptions(
        parent=fields.get("in", read_name, ""),
        topology=fields.get("topology", read_text, ""),
        preferred_topology=fields.get("near", read_text, ""),
        evict_whole=fields.get("whole", read_flag, False),
    )


def _read_min_count(fields: ScenarioFields, default: int) -> int | None:
    quorum = fields.get("min", read_count, default)
    if not fields.get("basic", read_flag, False):
        return quorum
    if "min" in fields:
        raise InvalidScenario(fields.path_of("min"), "no min beside basic", quorum)
    return None


def _read_members(fields: ScenarioFields, known: ScenarioNames, key: str) -> CreatePods:
    """Read the first members of a gang, which the entry `key` names; creates no PodGroup."""
    gang, template = fields.require(key, read_name), _read_template(fields, _EMPTY_TEMPLATE)
    known.add_gang(fields.path_of(key), gang, template)
    members = known.add_members(fields.path_of(key), gang, fields.get("pods", read_count, 1))
    return CreatePods(members, template, gang)


def _read_group(fields: ScenarioFields, known: ScenarioNames) -> CreatePodGroup:
    name = fields.require("group", read_name)
    if not known.has_gang(name):
        template = ScenarioPodTemplate({}, priority=fields.get("priority", read_integer, 0))
        known.add_gang(fields.path_of("group"), name, template)
    default_priority = known.gang_template(name).priority
    priority = fields.get("priority", read_integer, default_priority)
    return CreatePodGroup(
        name, _read_min_count(fields, 1), priority, options=_read_group_options(fields)
    )


def _read_composite(fields: ScenarioFields, known: ScenarioNames) -> CreateCompositePodGroup:
    name, priority = fields.require("tree", read_name), fields.get("priority", read_integer, 0)
    return CreateCompositePodGroup(
        name, _read_min_count(fields, 1), priority, options=_read_group_options(fields)
    )


def _read_join(fields: ScenarioFields, known: ScenarioNames) -> CreatePods:
    gang = fields.require("join", known.find_gang)
    members = known.add_members(fields.path_of("join"), gang, fields.get("pods", read_count, 1))
    return CreatePods(members, _read_template(fields, known.gang_template(gang)), gang)


def _read_pod(fields: ScenarioFields, known: ScenarioNames) -> CreatePods:
    name = fields.require("pod", read_name)
    known.add_pod(fields.path_of("pod"), name)
    return CreatePods((name,), _read_template(fields, _EMPTY_TEMPLATE))


def _read_gang_number(key: str, fields: ScenarioFields, known: ScenarioNames) -> tuple[str, int]:
    """Read a gang and a number."""
    inner = fields.require(key, ScenarioFields)
    change = inner.require("gang", known.find_gang), inner.require("to", read_count)
    inner.reject_unread()
    return change


EVENT_READERS: Mapping[str, Callable[[ScenarioFields, ScenarioNames], ScenarioEvent]] = {
    "gang": _read_gang,
    "join": _read_join,
    "pod": _read_pod,
    "group": _read_group,
    "tree": _read_composite,
    "make": lambda fields, known: CreateManifest(fields.require("make", read_mapping)),
    "members": lambda fields, known: _read_members(fields, known, "members"),
    "finish": lambda fields, known: FinishPods(fields.require("finish", known.find_target)),
    "delete": lambda fields, known: DeleteTarget(fields.require("delete", known.find_target)),
    "ungate": lambda fields, known: RemoveSchedulingGates(
        fields.require("ungate", known.find_target)
    ),
    "drop group": lambda fields, known: ForceDeleteGroup(
        fields.require("drop group", known.find_gang)
    ),
    "set min": lambda fields, known: SetMinCount(*_read_gang_number("set min", fields, known)),
    "set left": lambda fields, known: SetMembersToRun(
        *_read_gang_number("set left", fields, known)
    ),
    "cordon": lambda fields, known: CordonNode(fields.require("cordon", known.find_node), True),
    "uncordon": lambda fields, known: CordonNode(
        fields.require("uncordon", known.find_node), False
    ),
    "add nodes": lambda fields, known: AddNodes(
        fields.require("add nodes", lambda path, found: read_nodes(known, path, found))
    ),
    "remove node": lambda fields, known: RemoveNode(fields.require("remove node", known.find_node)),
}
