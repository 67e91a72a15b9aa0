"""What lets a gang go that waits for members, and what does not."""

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
    ("news", "goes"),
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
def test_a_gang_goes_when_a_member_comes_or_fewer_are_needed(news: News, goes: bool) -> None:
    queue = SchedulingQueue()
    queue.observe_group(gang("g", 3), 0.0)
    for number in range(2):
        queue.observe_pod(pod(f"g-{number}", "g"), 0.0)
    assert queue.pop(0.0) is None
    news(queue)
    tried = names(queue.pop(1.0))
    assert ("g-0" in tried) is goes


@pytest.mark.parametrize(
    ("news", "goes"),
    [
        (lambda queue: queue.observe_pod(pod("b-0", "b"), 1.0), True),
        (lambda queue: queue.observe_group(composite("t", 1), 1.0), True),
        (lambda queue: queue.observe_pod(pod("a-1", "a"), 1.0), False),
        (lambda queue: queue.observe_pod(pod("c-0", "c"), 1.0), False),
    ],
)
def test_a_tree_goes_when_enough_of_its_groups_can(news: News, goes: bool) -> None:
    queue = SchedulingQueue()
    for group in (composite("t", 2), gang("a", 1, parent="t"), gang("b", 1, parent="t")):
        queue.observe_group(group, 0.0)
    queue.observe_pod(pod("a-0", "a"), 0.0)
    assert queue.pop(0.0) is None
    news(queue)
    assert ("a-0" in names(queue.pop(1.0))) is goes
