"""Container logs and resource usage that the kubelets of process nodes report; kept in memory.

Kubelets send log lines (`pod_logs.append_log`), which `pods/log` returns, and usage samples
(`resource_metrics.report_pod_metrics`), which `kubectl top` shows. Both are bounded: logs by bytes
per container run and in total, samples by the number of pods; the oldest are dropped first. Nothing
is written to disk or to the store.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from phalanx.api.resources import Amounts

#: Bytes that are kept per run of a container, and in total.
MAX_RUN_LOG_BYTES, MAX_TOTAL_LOG_BYTES = 1024 * 1024, 64 * 1024 * 1024
#: Bytes that a line needs beside its text; a container can print millions of empty lines.
_LINE_OVERHEAD = 96


class LogLine(NamedTuple):
    """One line including its newline, its number in the run, and the time when it was received."""

    number: int
    time: float
    text: bytes


class ContainerRun(NamedTuple):
    """One run of a container: pod uid, container name, number of restarts."""

    uid: str
    container: str
    restart: int


class _RunLog:
    """The last lines of one run."""

    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque()
        self.size = self._count = 0

    def append(self, time: float, text: bytes) -> int:
        """Append lines and drop the oldest; return the change of the size in bytes."""
        before = self.size
        for part in text.splitlines(keepends=True):
            line = part[-(MAX_RUN_LOG_BYTES - _LINE_OVERHEAD) :]
            self.lines.append(LogLine(self._count, time, line))
            self._count += 1
            self.size += len(line) + _LINE_OVERHEAD
        while self.size > MAX_RUN_LOG_BYTES:
            self.size -= len(self.lines.popleft().text) + _LINE_OVERHEAD
        return self.size - before


class ContainerLogs:
    """The logs of all containers, within a limit."""

    def __init__(self, max_bytes: int = MAX_TOTAL_LOG_BYTES) -> None:
        self._logs: OrderedDict[ContainerRun, _RunLog] = OrderedDict()
        self._max_bytes, self._size = max_bytes, 0

    def append(self, run: ContainerRun, time: float, text: bytes) -> None:
        """Append output to the log of a run; drop the least recently written logs if needed.

        Only the last two runs of a container are kept.
        """
        log = self._logs.setdefault(run, _RunLog())
        self._logs.move_to_end(run)
        self._size += log.append(time, text)
        self._drop(run._replace(restart=run.restart - 2))
        while self._size > self._max_bytes and len(self._logs) > 1:
            self._drop(next(iter(self._logs)))

    def lines(self, run: ContainerRun, since: int = 0) -> list[LogLine]:
        """The kept lines of a run from a number on."""
        log = self._logs.get(run)
        if log is None or not log.lines or since > log.lines[-1].number:
            return []
        return list(islice(log.lines, max(since - log.lines[0].number, 0), None))

    def _drop(self, run: ContainerRun) -> None:
        log = self._logs.pop(run, None)
        self._size -= log.size if log else 0


#: Pods whose samples are kept.
MAX_SAMPLED_PODS = 10_000


@dataclass(frozen=True, slots=True)
class UsageSample:
    """The usage of each container of a pod at a time; CPU is the average over the window."""

    time: float
    window: str
    containers: Mapping[str, Amounts]


class UsageSamples:
    """The latest sample of each pod, by uid."""

    def __init__(self, max_pods: int = MAX_SAMPLED_PODS) -> None:
        self._samples: OrderedDict[str, UsageSample] = OrderedDict()
        self._max_pods = max_pods

    def add(self, uid: str, sample: UsageSample) -> None:
        """Replace the sample of a pod."""
        self._samples[uid] = sample
        self._samples.move_to_end(uid)
        if len(self._samples) > self._max_pods:
            self._samples.popitem(last=False)

    def latest(self, uid: str, *, since: float) -> UsageSample | None:
        """The sample of a pod, unless it is older than `since`."""
        sample = self._samples.get(uid)
        return sample if sample and sample.time >= since else None
