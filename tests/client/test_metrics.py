from __future__ import annotations

from phalanx.client.metrics import observe_queue
from phalanx.client.workqueue import WorkQueue
from phalanx.telemetry import Metrics
from tests.builders import in_virtual_time


@in_virtual_time
async def test_a_work_queue_tells_what_waits_what_came_and_what_failed() -> None:
    metrics, queue = Metrics(), WorkQueue[str]()
    observe_queue(metrics, "jobs", queue)
    for key in ("a", "a", "b", "c"):
        queue.add(key)
    assert await queue.get() == "a"
    # While it is worked on it comes again, and is counted once.
    queue.add("a")
    queue.retry("b")
    queue.done("a")
    told = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    assert told == [
        'workqueue_adds_total{name="jobs"} 4',
        'workqueue_depth{name="jobs"} 3',
        'workqueue_retries_total{name="jobs"} 1',
    ]
    queue.close()
