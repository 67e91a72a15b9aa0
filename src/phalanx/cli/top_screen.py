"""The live screen of `phalanx top`: tables that are scrolled, sorted and opened with keys.

`TopScreen` is the state: which table is open, which row is selected, how rows are sorted. It turns
keys into another state and a cluster into lines, and knows no terminal. `run_screen` connects it to
one: the alternate screen, keys without Enter, and the cluster read again every few seconds.

    gangs ─Enter─▶ members of a gang      domains ─Enter─▶ nodes of a domain ─Enter─▶ pods of a node
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TextIO

from phalanx.api.core import Pod
from phalanx.api.meta import Key, Ref
from phalanx.api.printing.cells import format_duration
from phalanx.cli.cluster_overview import ClusterOverview, NodeSummary
from phalanx.cli.output import (
    EMPTY_CELL,
    StyledLine,
    align_columns,
    colorize,
    cut_line,
    natural_key,
    progress_bar,
)
from phalanx.cli.queue import format_reason
from phalanx.cli.workload_states import (
    HELD,
    NEVER,
    PREEMPTED,
    RESERVED,
    RUNNING,
    WAITING,
    ListedWorkload,
)
from phalanx.logs import escape_unprintable
from phalanx.scheduler.diagnosis.queue_order import pods_with_entities
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

GANGS, NODES, DOMAINS, MEMBERS, PODS = "gangs", "nodes", "domains", "members", "pods"
_HELP = "Tab next table  ↑↓ PgUp PgDn  Enter open  Esc back  s sort  r reverse  q quit"
_BAR_WIDTH, _MAX_BARS = 8, 4
#: Waiting gangs come first: they are what an operator looks for.
_STATE_ORDER = {NEVER: 0, WAITING: 0, RESERVED: 0, PREEMPTED: 0, HELD: 1, RUNNING: 2}
#: The escape sequences of keys, and their names. A lone escape is Esc.
KEYS = {
    "\x1b[A": "up", "\x1bOA": "up", "k": "up", "\x1b[B": "down", "\x1bOB": "down", "j": "down",
    "\x1b[5~": "page-up", "\x1b[6~": "page-down", " ": "page-down", "\x1b[H": "home", "g": "home",
    "\x1b[F": "end", "G": "end", "\r": "enter", "\n": "enter", "\x1b[C": "enter",
    "\x1b": "back", "\x7f": "back", "\x1b[D": "back", "\t": "next", "\x1b[Z": "previous",
    # tmux and screen, rxvt, and terminals in application mode.
    "\x1b[1~": "home", "\x1b[7~": "home", "\x1bOH": "home",
    "\x1b[4~": "end", "\x1b[8~": "end", "\x1bOF": "end",
    "s": "sort", "r": "reverse", "q": "quit", "\x03": "quit",
}  # fmt: skip
#: The key that nothing is bound to: the cluster was read again.
_REDRAW = "redraw"
#: What a terminal sends for one key.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;]*[ -~]|O[ -~])|.", re.DOTALL)
_ENTER_SCREEN, _LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


class TableName(NamedTuple):
    """A table: its type, and the level, domain, node or gang that it is about."""

    type: str
    subject: Any = None


class TableRow(NamedTuple):
    """A row: its cells, what each is sorted by, and the table that Enter opens."""

    cells: tuple[str, ...]
    keys: tuple[Any, ...]
    opens: TableName | None = None
    colour: str = ""


class Table(NamedTuple):
    """A title, a header and rows in their own order, and a line above the title."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[TableRow]
    note: str = ""


@dataclass(slots=True)
class TableView:
    """An open table: its name, the selected row, the first row shown, and the order of rows."""

    name: TableName
    selected: int = 0
    first: int = 0
    #: The column that rows are sorted by; None is their own order.
    column: int | None = None
    is_reversed: bool = False


@dataclass(slots=True)
class TopScreen:
    """The state of the screen."""

    cluster: ClusterObjects
    overview: ClusterOverview
    now: float
    namespace: str = ""
    #: The open table is the last one; Esc closes it.
    views: list[TableView] = field(default_factory=lambda: [TableView(TableName(GANGS))])

    def update(self, cluster: ClusterObjects, overview: ClusterOverview, now: float) -> None:
        """Show a later state of the cluster."""
        self.cluster, self.overview, self.now = cluster, overview, now

    def press(self, key: str, page: int = 10) -> bool:
        """Handle a key; return False if it ends the program. `page` is the number of rows shown."""
        view = self.views[-1]
        table = self._table(view)
        last = max(len(table.rows) - 1, 0)
        moves = {
            "up": -1,
            "down": 1,
            "page-up": -page,
            "page-down": page,
            "home": -last,
            "end": last,
        }
        if key in moves:
            view.selected = min(max(view.selected + moves[key], 0), last)
        elif key in ("next", "previous"):
            domains = [TableName(DOMAINS, level) for level in self.overview.domains]
            tables = [TableName(GANGS), *domains, TableName(NODES)]
            name = self.views[0].name
            place = tables.index(name) if name in tables else 0
            step = 1 if key == "next" else -1
            self.views = [TableView(tables[(place + step) % len(tables)])]
        elif key == "sort":
            column = 0 if view.column is None else view.column + 1
            view.column = column if column < len(table.header) else None
        elif key == "reverse":
            view.is_reversed = not view.is_reversed
        elif key == "back" and len(self.views) > 1:
            self.views.pop()
        elif key == "enter" and table.rows:
            opened = table.rows[min(view.selected, last)].opens
            self.views += [TableView(opened)] if opened else []
        return key != "quit"

    def rows_shown(self, height: int) -> int:
        """Return how many rows of a table fit on a screen."""
        return max(height - len(self._head()) - 4, 1)

    def _head(self) -> list[StyledLine]:
        """Return the lines above the table: a summary, and a bar per resource."""
        total = self.overview.total
        lines = [StyledLine(self.overview.summary), *self.overview.warnings]
        bars = [
            (name, progress_bar(total.used.get(name, 0), amount, 30), _percent(total, name))
            for name, amount in _scarcest(self.overview)
        ]
        return [*lines, *map(StyledLine, align_columns(bars, gap=2))] if bars else lines

    def render(self, width: int, height: int) -> list[StyledLine]:
        """Return exactly the lines of a screen of this size."""
        view, head = self.views[-1], self._head()
        table, room = self._table(view), self.rows_shown(height)
        view.selected = min(view.selected, max(len(table.rows) - 1, 0))
        view.first = min(view.first, view.selected, max(len(table.rows) - room, 0))
        view.first = max(view.first, view.selected - room + 1)
        shown = table.rows[view.first : view.first + room]
        header = tuple(
            f"{name}{'▼' if view.is_reversed else '▲'}" if column == view.column else name
            for column, name in enumerate(table.header)
        )
        position = f"{view.selected + 1} of {len(table.rows)}" if table.rows else "none"
        first, *texts = align_columns([header, *(row.cells for row in shown)], gap=2)
        lines = [*head, StyledLine(table.note), StyledLine(f"{table.title}: {position}", "cyan")]
        lines.append(StyledLine(f"  {first}"))
        for place, (row, text) in enumerate(zip(shown, texts, strict=True), view.first):
            mark = "> " if place == view.selected else "  "
            lines.append(StyledLine(f"{mark}{text}", row.colour))
        lines = lines[: height - 1]
        lines += [StyledLine("")] * (height - 1 - len(lines)) + [StyledLine(_HELP, "cyan")]
        return [StyledLine(cut_line(line.text, width), line.colour) for line in lines]

    def _table(self, view: TableView) -> Table:
        """Build the table of a view, with its rows in the chosen order."""
        builders: Mapping[str, Callable[[Any], Table]] = {
            GANGS: self._gangs,
            DOMAINS: self._domains,
            NODES: self._nodes,
            MEMBERS: self._members,
            PODS: self._pods,
        }
        table = builders[view.name.type](view.name.subject)
        rows = list(table.rows)
        if view.column is not None:
            column = view.column
            rows.sort(key=lambda row: row.keys[column])
        if view.is_reversed:
            rows.reverse()
        return table._replace(rows=rows)

    def _gangs(self, _: Any) -> Table:
        gangs = self.overview.gangs_of(self.namespace)
        gangs.sort(key=lambda gang: _STATE_ORDER[gang.state])
        header: tuple[str, ...] = ("GANG", "STATE", "PROGRESS", "PODS", "SINCE", "REASON")
        if with_namespace := len({gang.row.ref.namespace for gang in gangs}) > 1:
            header = ("NAMESPACE", *header)
        rows = [self._gang_row(gang, with_namespace=with_namespace) for gang in gangs]
        return Table("Gangs", header, rows)

    def _gang_row(self, gang: ListedWorkload, *, with_namespace: bool) -> TableRow:
        row, state = gang.row, gang.state.capitalize()
        done, age = row.placed + row.ended, max(self.now - row.since, 0)
        share = done / row.members if row.members else 0.0
        bar = progress_bar(done, row.members, _BAR_WIDTH)
        counts, name = f"{done}/{row.members}", row.display_name
        reason = format_reason(gang, self.now)
        cells = (name, state, bar, counts, format_duration(age), reason or EMPTY_CELL)
        keys = (natural_key(name), state, share, row.members, age, reason)
        space = (row.ref.namespace,) if with_namespace else ()
        return TableRow((*space, *cells), (*space, *keys), TableName(MEMBERS, row.ref), gang.colour)

    def _domains(self, level: str) -> Table:
        rows = []
        for domain in self.overview.domains.get(level, ()):
            row = self._node_row(domain, TableName(NODES, (level, domain.name)))
            (cell, *cells), (key, *keys) = row.cells, row.keys
            rows.append(
                row._replace(
                    cells=(cell, str(domain.nodes), *cells), keys=(key, domain.nodes, *keys)
                )
            )
        title = level.rpartition("/")[2]
        return Table(f"By {title}", (title.upper(), "NODES", *self._usage_header()), rows)

    def _nodes(self, domain: tuple[str, str] | None) -> Table:
        nodes, title = list(self.overview.nodes), "Nodes"
        if domain is not None:
            label, value = domain
            labels = {node.metadata.name: node.metadata.labels for node in self.cluster.nodes}
            nodes = [node for node in nodes if labels[node.name].get(label) == value]
            title = f"Nodes of {label.rpartition('/')[2]} {value}"
        rows = [self._node_row(node, TableName(PODS, node.name)) for node in nodes]
        return Table(title, ("NODE", *self._usage_header()), rows)

    def _usage_header(self) -> tuple[str, ...]:
        return ("PODS", *(name.upper() for name, _ in _scarcest(self.overview)), "PROBLEM")

    def _node_row(self, node: NodeSummary, opens: TableName) -> TableRow:
        resources = [name for name, _ in _scarcest(self.overview)]
        cells, shares = list[str](), list[float]()
        for name in resources:
            amount = node.allocatable.get(name, 0)
            used = node.used.get(name, 0)
            shares.append(used / amount if amount else -1.0)
            bar = progress_bar(used, amount, _BAR_WIDTH)
            cells.append(f"{bar} {_percent(node, name):>4}" if amount else EMPTY_CELL)
        return TableRow(
            (node.name, str(node.pods), *cells, node.problem or EMPTY_CELL),
            (natural_key(node.name), node.pods, *shares, node.problem),
            opens,
            "red" if node.problem else "",
        )

    def _members(self, ref: Ref) -> Table:
        pods = [
            pod
            for entity, pod in pods_with_entities(self.cluster)
            if entity == ref or (pod.group is not None and Ref("PodGroup", *pod.group) == ref)
        ]
        gang = next((one for one in self.overview.gangs if one.row.ref == ref), None)
        title, note = str(ref), ""
        if gang is not None and gang.row.owner:
            kind, _, name = gang.row.owner.partition("/")
            title = f"{kind} {Key(ref.namespace, name)}"
        if gang is not None and gang.state != RUNNING:
            note = f"{gang.state.capitalize()}: phalanx why {gang.row.argument} -n {ref.namespace}"
        return self._pod_table(f"Members of {title}", pods)._replace(note=note)

    def _pods(self, node: str) -> Table:
        pods = [pod for pod in self.cluster.pods if pod.occupied_node == node]
        return self._pod_table(f"Pods of node {node}", pods)

    def _pod_table(self, title: str, pods: Sequence[Pod]) -> Table:
        rows = []
        for pod in sorted(pods, key=lambda pod: natural_key(str(pod.metadata.key))):
            node, name = pod.spec.node_name or EMPTY_CELL, str(pod.metadata.key)
            cells = (name, pod.status.phase, node)
            keys = (natural_key(name), pod.status.phase, natural_key(node))
            rows.append(
                TableRow(cells, keys, TableName(PODS, node) if pod.spec.node_name else None)
            )
        return Table(title, ("POD", "PHASE", "NODE"), rows)


def _scarcest(overview: ClusterOverview) -> list[tuple[str, int]]:
    """Return the resources with the largest used shares, and their allocatable amounts."""
    total = overview.total
    amounts = [(name, total.allocatable[name]) for name in overview.resources]
    present = [one for one in amounts if one[1]]
    present.sort(key=lambda one: -total.used.get(one[0], 0) / one[1])
    return present[:_MAX_BARS]


def _percent(node: NodeSummary, resource: str) -> str:
    amount = node.allocatable.get(resource, 0)
    return f"{node.used.get(resource, 0) * 100 // amount}%" if amount else EMPTY_CELL


# ---- the terminal --------------------------------------------------------------------------------


async def run_screen(
    screen: TopScreen, refresh: Callable[[], Awaitable[None]], *, interval: float
) -> None:
    """Draw the screen, handle keys and refresh the cluster, until the user quits.

    Reading a large cluster takes seconds: keys are handled meanwhile.
    """
    keys = asyncio.Queue[str]()

    async def refresh_repeatedly() -> None:
        while True:
            await asyncio.sleep(interval)
            await refresh()
            keys.put_nowait(_REDRAW)

    with _alternate_screen(sys.stdout), _typed_keys(sys.stdin, keys):
        refreshing = asyncio.create_task(refresh_repeatedly())
        refreshing.add_done_callback(lambda _: keys.put_nowait(_REDRAW))
        try:
            while True:
                width, height = shutil.get_terminal_size()
                _draw(sys.stdout, screen.render(width, height))
                key = await keys.get()
                if refreshing.done():
                    # It ends with an error only: the server is gone, or its answer is refused.
                    return refreshing.result()
                if not screen.press(key, screen.rows_shown(height)):
                    return None
        finally:
            refreshing.cancel()
            await asyncio.wait([refreshing])


def split_keys(typed: str) -> Iterator[str]:
    """Split typed characters into the names of keys; sequences of other keys are passed over."""
    for sequence in _SEQUENCE.findall(typed):
        if name := KEYS.get(sequence):
            yield name


def _draw(out: TextIO, lines: Sequence[StyledLine]) -> None:
    body = "\r\n".join(
        colorize(StyledLine(escape_unprintable(line.text, keep=""), line.colour)) + _CLEAR_LINE
        for line in lines
    )
    out.write(f"{_HOME}{body}{_CLEAR_BELOW}")
    out.flush()


@contextlib.contextmanager
def _alternate_screen(out: TextIO) -> Iterator[None]:
    """Use the alternate screen of the terminal, which keeps what was on it before."""
    out.write(_ENTER_SCREEN)
    try:
        yield
    finally:
        out.write(_LEAVE_SCREEN)
        out.flush()


@contextlib.contextmanager
def _typed_keys(source: TextIO, keys: asyncio.Queue[str]) -> Iterator[None]:
    """Put the keys that the user types into a queue, without waiting for Enter.

    Without a terminal to type on there are no keys; ^C ends the program.
    """
    if not source.isatty():
        yield
        return

    def read() -> None:
        try:
            typed = os.read(source.fileno(), 1024)
        except OSError:
            typed = b""
        if not typed:
            # The terminal is gone: it would be readable for ever.
            loop.remove_reader(source.fileno())
            keys.put_nowait("quit")
        for key in split_keys(typed.decode(errors="replace")):
            keys.put_nowait(key)

    loop, settings = asyncio.get_running_loop(), termios.tcgetattr(source.fileno())
    tty.setcbreak(source.fileno())
    loop.add_reader(source.fileno(), read)
    try:
        yield
    finally:
        loop.remove_reader(source.fileno())
        with contextlib.suppress(termios.error):
            termios.tcsetattr(source.fileno(), termios.TCSADRAIN, settings)
