"""What processes on process nodes have written: the end of it, in memory, until the server stops.

The kubelet of such a node sends lines here (`logs.write`), whoever may read `pods/log` reads them.
Bounded twice: each run of a container by bytes, of which the last are kept, and all together, of
which those go first that were written to longest ago. Never on disk and never in the store.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

#: Bytes that are kept of one run of a container, and of all.
MOST, MOST_OF_ALL = 1024 * 1024, 64 * 1024 * 1024


class Line(NamedTuple):
    """One line with its end, which it was since the beginning, and when it was written."""

    number: int
    moment: float
    text: bytes


class Written(NamedTuple):
    """Which run of which container of which pod."""

    uid: str
    container: str
    restart: int


class _Output:
    """The last lines of one run."""

    def __init__(self) -> None:
        self.lines: deque[Line] = deque()
        self.size = self._count = 0

    def append(self, moment: float, text: bytes) -> int:
        """Keep these lines too, as far as there is room; by how much it has grown."""
        before = self.size
        for part in text.splitlines(keepends=True):
            line = part[-MOST:]
            self.lines.append(Line(self._count, moment, line))
            self._count += 1
            self.size += len(line)
        while self.size > MOST:
            self.size -= len(self.lines.popleft().text)
        return self.size - before


class Outputs:
    """Everything that was written, as far as it is kept."""

    def __init__(self, most_of_all: int = MOST_OF_ALL) -> None:
        self._outputs: OrderedDict[Written, _Output] = OrderedDict()
        self._most, self._size = most_of_all, 0

    def append(self, run: Written, moment: float, text: bytes) -> None:
        """Keep what was written; older output of others gives way. Of each run but the last two
        of a container nothing is kept."""
        output = self._outputs.setdefault(run, _Output())
        self._outputs.move_to_end(run)
        self._size += output.append(moment, text)
        self._drop(run._replace(restart=run.restart - 2))
        while self._size > self._most and len(self._outputs) > 1:
            self._drop(next(iter(self._outputs)))

    def lines(self, run: Written) -> Iterator[Line]:
        """What is kept of a run."""
        output = self._outputs.get(run)
        return iter(list(output.lines) if output else ())

    def _drop(self, run: Written) -> None:
        output = self._outputs.pop(run, None)
        self._size -= output.size if output else 0
