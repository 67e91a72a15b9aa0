"""Generates `docs/metrics.md` from the tables of metrics.

python -m tools.metrics            print it
python -m tools.metrics --write    write it
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.client import metrics as client
from phalanx.controllers.jobs import metrics as jobs
from phalanx.controllers.scheduling import metrics as scheduling
from phalanx.server import request_metrics as server
from phalanx.telemetry import MetricSpec

FILE = Path(__file__).parent.parent / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics

Written by `python -m tools.metrics --write` from the tables that the code measures by.

`GET /metrics` answers with everything that is measured, in the text format of Prometheus. It asks
for the same credential as the rest of the API:

```
kubectl get --raw /metrics
```

Names that Kubernetes has too mean the same as there, with the same labels and the same bounds of
histograms; names of our own begin with `phalanx_`. What nothing has fed yet is not shown. Durations
of the scheduler are by its clock, so that in a simulation they are virtual.
"""

_LINES = """\
A pod of a group counts like any other where pods are counted. `queue` is the line that it stands
in: `active` is tried next, `unschedulable` was refused, `backoff` could not be bound or was refused
in error, `gated` is held back by a scheduling gate or waits for more members, `incomplete` waits
for its PodGroup, `pending` came while its group was being tried. What is refused is tried again
after a pause too, not only when something happens that may help; what is being tried stands in no
line.

A CompositePodGroup counts as a PodGroup; only `preemptor` tells them apart. Of placements those of
the topmost group count. Where all members are alike arithmetic tells which placement will win, and
only that one is tried. What came of thinking about preemption is `Success` if others leave,
`Unschedulable` if no pod may be evicted or no eviction would help, and
`UnschedulableAndUnresolvable` if there is no pod of lower priority."""

SECTIONS: Sequence[tuple[str, str, Sequence[MetricSpec[Any]]]] = (
    ("Scheduler", _LINES, scheduling.METRIC_SPECS),
    (
        "API server",
        "Requests that are about objects; health, discovery and this page are not counted.",
        server.SERVER_METRICS,
    ),
    (
        "Job controller",
        "Names and labels are those of kube-controller-manager, as far as it measures the same.",
        jobs.JOB_METRICS,
    ),
    (
        "Controllers and informers",
        "`name` is the function that works the queue off, or what the queue holds.",
        client.METRICS,
    ),
)

#: Metrics of kube-scheduler that this scheduler lacks, by reason.
NOT_PROVIDED: Mapping[str, Sequence[str]] = {
    "a decision reads no clock: part of `scheduler_*scheduling_algorithm_duration_seconds`": (
        "placement_evaluation_duration_seconds",
        "preemption_evaluation_duration_seconds",
    ),
    "there is one thread: see `scheduler_preemption_execution_duration_seconds`": (
        "preemption_goroutines_duration_seconds",
        "preemption_goroutines_execution_total",
    ),
    "plugins are rows of tables and do not run one by one": (
        "framework_extension_point_duration_seconds",
        "plugin_execution_duration_seconds",
        "plugin_evaluation_total",
        "queueing_hint_execution_duration_seconds",
        "pre_queueing_hint_evaluations_total",
    ),
    "pods of one shape are always placed as a class": (
        "batch_attempts_total",
        "batch_cache_flushed_total",
        "batch_rescore_attempts_total",
        "batch_rescore_duration_seconds",
        "get_node_hint_duration_seconds",
        "store_schedule_results_duration_seconds",
    ),
    "calls of the API go through work queues: see `workqueue_*`": (
        "async_api_call_execution_total",
        "async_api_call_execution_duration_seconds",
        "pending_async_api_calls",
    ),
    "devices are not bound under conditions": (
        "dra_bindingconditions_allocations_total",
        "dra_bindingconditions_wait_duration_seconds",
    ),
    "nothing waits between a decision and its binding": ("permit_wait_duration_seconds",),
    "nothing is flushed: every refusal ends by itself": ("pod_scheduled_after_flush_total",),
    "events that come during a decision are kept with the entity": ("inflight_events",),
    "there is one thread": ("goroutines",),
}


def render_document() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    parts += [f"## {title}\n\n{text}\n\n{_table(rows)}" for title, text, rows in SECTIONS]
    absent = [(f"`scheduler_{name}`", why) for why, names in NOT_PROVIDED.items() for name in names]
    parts.append(f"## What is not measured\n\n{_markdown(('kube-scheduler has', 'here'), absent)}")
    return "\n".join(parts)


def _table(rows: Iterable[MetricSpec[Any]]) -> str:
    lines = [
        (
            f"`{row.name}`",
            row.series_type.type,
            ", ".join(row.labels) or "-",
            row.help,
            _bounds(row),
        )
        for row in rows
    ]
    return _markdown(("metric", "type", "labels", "what it tells", "bounds"), lines)


def _bounds(row: MetricSpec[Any]) -> str:
    if not row.buckets:
        return "-"
    return f"{row.buckets[0]:g} … {row.buckets[-1]:g} ({len(row.buckets)})"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    """Print or write the page."""
    parser = argparse.ArgumentParser(description="The page about metrics.")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    if parser.parse_args().write:
        FILE.write_text(render_document())
    else:
        print(render_document())


if __name__ == "__main__":
    main()
