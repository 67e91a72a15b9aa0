"""What processes on process nodes have written: the end of it, in memory, until the server stops.

The kubelet of such a node sends lines here (`logs.write`), whoever may read `pods/log` reads them.
Bounded twice: each run of a container by bytes, of which the last are kept, and all together, of
which those go first that were written to longest ago. Never on disk and never in the store.

What the kubelets of process nodes measured last of each pod: in memory, until the server stops.

Sent by them (`figures.report`), shown by `kubectl top`. Bounded: of too many pods those go first
that were measured longest ago. Never on disk and never in the store.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.resources import Amounts

#: Bytes that are kept of one run of a container, and of all.
MAX_RUN_LOG_BYTES, MAX_TOTAL_LOG_BYTES = 1024 * 1024, 64 * 1024 * 1024


class LogLine(NamedTuple):
    """One line with its end, which it was since the beginning, and when it was written."""

    number: int
    time: float
    text: bytes


class ContainerRun(NamedTuple):
    """Which run of which container of which pod."""

    uid: str
    container: str
    restart: int


class _RunLog:
    """The last lines of one run."""

    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque()
        self.size = self._count = 0

    def append(self, time: float, text: bytes) -> int:
        """Keep these lines too, as far as there is room; by how much it has grown."""
        before = self.size
        for part in text.splitlines(keepends=True):
            line = part[-MAX_RUN_LOG_BYTES:]
            self.lines.append(LogLine(self._count, time, line))
            self._count += 1
            self.size += len(line)
        while self.size > MAX_RUN_LOG_BYTES:
            self.size -= len(self.lines.popleft().text)
        return self.size - before


class ContainerLogs:
    """Everything that was written, as far as it is kept."""

    def __init__(self, max_bytes: int = MAX_TOTAL_LOG_BYTES) -> None:
        self._logs: OrderedDict[ContainerRun, _RunLog] = OrderedDict()
        self._max_bytes, self._size = max_bytes, 0

    def append(self, run: ContainerRun, time: float, text: bytes) -> None:
        """Keep what was written; older output of others gives way. Of each run but the last two
        of a container nothing is kept."""
        output = self._logs.setdefault(run, _RunLog())
        self._logs.move_to_end(run)
        self._size += output.append(time, text)
        self._drop(run._replace(restart=run.restart - 2))
        while self._size > self._max_bytes and len(self._logs) > 1:
            self._drop(next(iter(self._logs)))

    def lines(self, run: ContainerRun) -> Iterator[LogLine]:
        """What is kept of a run."""
        output = self._logs.get(run)
        return iter(list(output.lines) if output else ())

    def _drop(self, run: ContainerRun) -> None:
        output = self._logs.pop(run, None)
        self._size -= output.size if output else 0


#: Pods of which something is kept.
MAX_SAMPLED_PODS = 10_000


@dataclass(frozen=True, slots=True)
class UsageSample:
    """What each container of a pod uses, up to a moment, CPU on average over a window."""

    time: float
    window: str
    containers: Mapping[str, Amounts]


class UsageSamples:
    """The last measurement of each pod, by its uid."""

    def __init__(self, max_pods: int = MAX_SAMPLED_PODS) -> None:
        self._samples: OrderedDict[str, UsageSample] = OrderedDict()
        self._max_pods = max_pods

    def add(self, uid: str, sample: UsageSample) -> None:
        """Have it take the place of the one before."""
        self._samples[uid] = sample
        self._samples.move_to_end(uid)
        if len(self._samples) > self._max_pods:
            self._samples.popitem(last=False)

    def latest(self, uid: str, *, since: float) -> UsageSample | None:
        """The last one of a pod, unless it is older."""
        found = self._samples.get(uid)
        return found if found and found.time >= since else None
