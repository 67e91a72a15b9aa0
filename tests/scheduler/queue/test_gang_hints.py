"""Which changes activate a gang that waits for members."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.builders import basic, composite, gang, pod
from tests.scheduler.queue.queue_helpers import names

News = Callable[[SchedulingQueue], object]


def with_other_scheduler(one: Pod) -> Pod:
    return replace(one, metadata=replace(one.metadata, namespace="elsewhere"))


@pytest.mark.parametrize(
    ("news", "activates"),
    [
        (lambda queue: queue.observe_pod(pod("g-2", "g"), 1.0), True),
        (lambda queue: queue.observe_pod(pod("h-0", "h"), 1.0), False),
        (lambda queue: queue.observe_pod(with_other_scheduler(pod("g-2", "g")), 1.0), False),
        (lambda queue: queue.observe_pod(pod("alone"), 1.0), False),
        (lambda queue: queue.observe_group(gang("g", 2), 1.0), True),
        (lambda queue: queue.observe_group(gang("g", 3), 1.0), False),
        (lambda queue: queue.observe_group(gang("g", 4), 1.0), False),
        (lambda queue: queue.observe_group(gang("h", 1), 1.0), False),
        (lambda queue: queue.observe_group(basic("h"), 1.0), False),
    ],
)
def test_gang_becomes_active_with_more_members_or_lower_min_count(
    news: News, activates: bool
) -> None:
    queue = SchedulingQueue()
    queue.observe_group(gang("g", 3), 0.0)
    for number in range(2):
        queue.observe_pod(pod(f"g-{number}", "g"), 0.0)
    assert queue.pop(0.0) is None
    news(queue)
    tried = names(queue.pop(1.0))
    assert ("g-0" in tried) is activates


@pytest.mark.parametrize(
    ("news", "activates"),
    [
        (lambda queue: queue.observe_pod(pod("b-0", "b"), 1.0), True),
        (lambda queue: queue.observe_group(composite("t", 1), 1.0), True),
        (lambda queue: queue.observe_pod(pod("a-1", "a"), 1.0), False),
        (lambda queue: queue.observe_pod(pod("c-0", "c"), 1.0), False),
    ],
)
def test_tree_becomes_active_with_enough_complete_groups(news: News, activates: bool) -> None:
    queue = SchedulingQueue()
    for group in (composite("t", 2), gang("a", 1, parent="t"), gang("b", 1, parent="t")):
        queue.observe_group(group, 0.0)
    queue.observe_pod(pod("a-0", "a"), 0.0)
    assert queue.pop(0.0) is None
    news(queue)
    assert ("a-0" in names(queue.pop(1.0))) is activates
