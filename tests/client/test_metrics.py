from __future__ import annotations

import asyncio

from phalanx.client.work_queue import WorkQueue, observe_queue
from phalanx.telemetry import Metrics
from tests.builders import in_virtual_time


@in_virtual_time
async def test_work_queue_exports_depth_adds_retries_and_durations() -> None:
    metrics, queue = Metrics(), WorkQueue[str]()
    observe_queue(metrics, "jobs", queue)
    queue.start(asyncio.get_running_loop().time)
    for key in ("a", "a", "b", "c"):
        queue.add(key)
    await asyncio.sleep(2)
    assert await queue.get() == "a"
    # Added again while in process: counted once.
    queue.add("a")
    queue.add_rate_limited("b")
    await asyncio.sleep(0.5)
    queue.done("a")
    lines = metrics.render().splitlines()
    assert [line for line in lines if not line.startswith("#") and "_bucket" not in line] == [
        'workqueue_adds_total{name="jobs"} 4',
        'workqueue_depth{name="jobs"} 3',
        'workqueue_queue_duration_seconds_sum{name="jobs"} 2',
        'workqueue_queue_duration_seconds_count{name="jobs"} 1',
        'workqueue_retries_total{name="jobs"} 1',
        'workqueue_work_duration_seconds_sum{name="jobs"} 0.5',
        'workqueue_work_duration_seconds_count{name="jobs"} 1',
    ]
    queue.close()
