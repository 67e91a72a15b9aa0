"""What can happen in a scenario: one frozen class and one row of READERS for each event.

Read by `scenario`, acted out by `driver`. Names are checked here: every event speaks of what came
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.api.core import Taint
from phalanx.controllers.nodes.nodes import SHAPE
from phalanx.sim.fields import (
    BadScenario,
    Fields,
    count,
    flag,
    integer,
    labels,
    mapping,
    name,
    resources,
    several,
    taint,
    text,
    whole_seconds,
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A node: what it is called, what it has and what marks it."""

    name: str
    room: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """What each pod is like and asks for. Without `seconds` it runs until it is told to end.

    What the language has no word for is in `spec`, as a manifest has it.
    """

    requests: Mapping[str, str]
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerates: tuple[Taint, ...] = ()
    seconds: int | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    spec: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods come: the members of a gang, whether its PodGroup is there or not, or on their own."""

    names: tuple[str, ...]
    template: Template
    gang: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a group asks for besides members: what it hangs from, where it must be, how it goes."""

    parent: str = ""
    #: A label whose value its nodes must share, and how near its members would like to be.
    topology: str = ""
    near: str = ""
    #: Whether it is evicted as a whole.
    goes_whole: bool = False


@dataclass(frozen=True, slots=True)
class Gang:
    """A PodGroup comes, and then its first members. No `quorum`: a Basic group."""

    name: str
    quorum: int | None
    pods: Pods
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Group:
    """A PodGroup comes, or comes again, without any members."""

    name: str
    quorum: int | None
    priority: int = 0
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Tree:
    """A CompositePodGroup comes, which needs so many of its groups. No `quorum`: a Basic one."""

    name: str
    quorum: int | None
    priority: int = 0
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Make:
    """Any other object comes, as a manifest has it."""

    manifest: Mapping[str, object]


class Target(NamedTuple):
    """A gang with all its pods, or one pod."""

    name: str
    is_gang: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """What runs of a target ends well."""

    target: Target


@dataclass(frozen=True, slots=True)
class Delete:
    """A target is deleted."""

    target: Target


@dataclass(frozen=True, slots=True)
class Ungate:
    """The gates of a target are removed."""

    target: Target


@dataclass(frozen=True, slots=True)
class DropGroup:
    """A PodGroup goes although it is in use: somebody takes its protection away."""

    name: str


@dataclass(frozen=True, slots=True)
class SetMin:
    """A gang needs another number of members from now on."""

    gang: str
    quorum: int


@dataclass(frozen=True, slots=True)
class SetLeft:
    """Whoever makes the members of a gang says how many it will still run."""

    gang: str
    members: int


@dataclass(frozen=True, slots=True)
class Cordon:
    """A node takes no new pods, or takes them again."""

    node: str
    cordoned: bool


@dataclass(frozen=True, slots=True)
class AddNodes:
    """Nodes come."""

    nodes: tuple[Machine, ...]


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """A node goes for good, and its pods with it."""

    node: str


Event = (
    Gang | Group | Tree | Make | Pods | Finish | Delete | Ungate | DropGroup | SetMin | SetLeft
    | Cordon | AddNodes | RemoveNode
)  # fmt: skip


class Cast:
    """Who has appeared in a scenario so far."""

    def __init__(self) -> None:
        self._gangs: dict[str, Template] = {}
        self._members: dict[str, int] = {}
        self._pods: dict[str, None] = {}
        self._nodes: dict[str, None] = {}
        self._numbers: dict[str, int] = {}

    def enter_gang(self, path: str, new: str, template: Template) -> None:
        """A gang comes in."""
        _be_new(path, new, self._gangs)
        self._gangs[new] = template

    def knows_gang(self, gang: str) -> bool:
        """Whether a gang came in, be it only with its members."""
        return gang in self._gangs

    def enter_members(self, path: str, gang: str, more: int) -> tuple[str, ...]:
        """The next members of a gang come in; their names."""
        first = self._members.get(gang, 0)
        self._members[gang] = first + more
        names = tuple(f"{gang}-{number}" for number in range(first, first + more))
        for pod in names:
            self.enter_pod(path, pod)
        return names

    def enter_pod(self, path: str, new: str) -> None:
        """A pod comes in."""
        _be_new(path, new, self._pods)
        self._pods[new] = None

    def enter_nodes(self, path: str, prefix: str, more: int | None) -> tuple[str, ...]:
        """Nodes of this name come in: one, or so many numbered ones."""
        names = [prefix]
        if more is not None:
            first = self._numbers.get(prefix, 0)
            self._numbers[prefix] = first + more
            width = len(str(first + more - 1))
            names = [f"{prefix}-{number:0{width}}" for number in range(first, first + more)]
        for node in names:
            _be_new(path, node, self._nodes)
            self._nodes[node] = None
        return tuple(names)

    def template(self, gang: str) -> Template:
        """What the first pods of a gang asked for."""
        return self._gangs[gang]

    def target(self, path: str, found: object) -> Target:
        """A gang or a pod that came before."""
        title = _among([*self._gangs, *self._pods], "a gang or a pod", path, found)
        return Target(title, title in self._gangs)

    def gang(self, path: str, found: object) -> str:
        """A gang that came before."""
        return _among(self._gangs, "a gang", path, found)

    def node(self, path: str, found: object) -> str:
        """A node that came before."""
        return _among(self._nodes, "a node", path, found)


def _be_new(path: str, new: str, taken: Iterable[str]) -> None:
    if new in taken:
        raise BadScenario(path, "a name that nobody had before", new)


def _among(known: Iterable[str], what: str, path: str, found: object) -> str:
    if not isinstance(found, str) or found not in known:
        raise BadScenario(path, f"{what} that came before", found)
    return found


def read_event(cast: Cast, path: str, found: object) -> Event:
    """One event, known by the entry that names it."""
    fields = Fields(path, found)
    kinds = [key for key in READERS if key in fields]
    if len(kinds) != 1:
        raise BadScenario(path, f"exactly one of {', '.join(READERS)}", found)
    event = READERS[kinds[0]](fields, cast)
    fields.close()
    return event


def read_machines(cast: Cast, path: str, found: object) -> tuple[Machine, ...]:
    """Groups of equal nodes, one or a list of them."""
    groups = several(lambda at, group: _machines(cast, Fields(at, group)))(path, found)
    return tuple(machine for group in groups for machine in group)


def _machines(cast: Cast, fields: Fields) -> tuple[Machine, ...]:
    prefix = fields.get("name", name, "node")
    number = fields.get("count", count, None if "name" in fields else 1)
    room = {**SHAPE, **fields.get("each", resources, _NONE)}
    marks, taints = fields.get("labels", labels, _NONE), fields.get("taints", several(taint), ())
    fields.close()
    names = cast.enter_nodes(fields.path, prefix, number)
    return tuple(Machine(node, room, marks, taints) for node in names)


_NONE: dict[str, str] = {}


def _template(fields: Fields, usual: Template) -> Template:
    return Template(
        fields.get("each", resources, usual.requests),
        fields.get("where", labels, usual.selector),
        fields.get("tolerates", several(taint), usual.tolerates),
        fields.get("run", whole_seconds, usual.seconds),
        fields.get("priority", integer, usual.priority),
        fields.get("labels", labels, usual.labels),
        fields.get("gates", several(name), usual.gates),
        fields.get("spec", mapping, usual.spec),
    )


_PLAIN = Template({})


def _gang(fields: Fields, cast: Cast) -> Gang:
    quorum = _quorum(fields, fields.take("pods", count))
    members = _members(fields, cast, "gang")
    return Gang(members.gang, quorum, members, _terms(fields))


def _terms(fields: Fields) -> Terms:
    return Terms(
        fields.get("in", name, ""),
        fields.get("topology", text, ""),
        fields.get("near", text, ""),
        fields.get("whole", flag, False),
    )


def _quorum(fields: Fields, usual: int) -> int | None:
    quorum = fields.get("min", count, usual)
    if not fields.get("basic", flag, False):
        return quorum
    if "min" in fields:
        raise BadScenario(fields.at("min"), "no min beside basic", quorum)
    return None


def _members(fields: Fields, cast: Cast, key: str) -> Pods:
    """The first members of a gang that nobody has heard of, named by this entry."""
    gang, template = fields.take(key, name), _template(fields, _PLAIN)
    cast.enter_gang(fields.at(key), gang, template)
    members = cast.enter_members(fields.at(key), gang, fields.get("pods", count, 1))
    return Pods(members, template, gang)


def _group(fields: Fields, cast: Cast) -> Group:
    title = fields.take("group", name)
    if not cast.knows_gang(title):
        template = Template({}, priority=fields.get("priority", integer, 0))
        cast.enter_gang(fields.at("group"), title, template)
    usual = cast.template(title).priority
    priority = fields.get("priority", integer, usual)
    return Group(title, _quorum(fields, 1), priority, _terms(fields))


def _tree(fields: Fields, cast: Cast) -> Tree:
    title, priority = fields.take("tree", name), fields.get("priority", integer, 0)
    return Tree(title, _quorum(fields, 1), priority, _terms(fields))


def _join(fields: Fields, cast: Cast) -> Pods:
    gang = fields.take("join", cast.gang)
    members = cast.enter_members(fields.at("join"), gang, fields.get("pods", count, 1))
    return Pods(members, _template(fields, cast.template(gang)), gang)


def _single(fields: Fields, cast: Cast) -> Pods:
    title = fields.take("pod", name)
    cast.enter_pod(fields.at("pod"), title)
    return Pods((title,), _template(fields, _PLAIN))


def _number(key: str, fields: Fields, cast: Cast) -> tuple[str, int]:
    """A gang and the number that something about it is set to."""
    inner = fields.take(key, Fields)
    change = inner.take("gang", cast.gang), inner.take("to", count)
    inner.close()
    return change


READERS: Mapping[str, Callable[[Fields, Cast], Event]] = {
    "gang": _gang,
    "join": _join,
    "pod": _single,
    "group": _group,
    "tree": _tree,
    "make": lambda fields, cast: Make(fields.take("make", mapping)),
    "members": lambda fields, cast: _members(fields, cast, "members"),
    "finish": lambda fields, cast: Finish(fields.take("finish", cast.target)),
    "delete": lambda fields, cast: Delete(fields.take("delete", cast.target)),
    "ungate": lambda fields, cast: Ungate(fields.take("ungate", cast.target)),
    "drop group": lambda fields, cast: DropGroup(fields.take("drop group", cast.gang)),
    "set min": lambda fields, cast: SetMin(*_number("set min", fields, cast)),
    "set left": lambda fields, cast: SetLeft(*_number("set left", fields, cast)),
    "cordon": lambda fields, cast: Cordon(fields.take("cordon", cast.node), True),
    "uncordon": lambda fields, cast: Cordon(fields.take("uncordon", cast.node), False),
    "add nodes": lambda fields, cast: AddNodes(
        fields.take("add nodes", lambda path, found: read_machines(cast, path, found))
    ),
    "remove node": lambda fields, cast: RemoveNode(fields.take("remove node", cast.node)),
}
