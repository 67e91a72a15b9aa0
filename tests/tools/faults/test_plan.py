"""Plans of seeds: every action and fault occurs, in order, and the same each time."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import get_args

from tools.faults.channel import RequestFault
from tools.faults.plan import generate_steps
from tools.faults.steps import FailBinds, FailRequests, InjectedFault, UserAction


def test_seed_gives_the_same_steps_and_a_long_plan_extends_a_short_one() -> None:
    assert list(islice(generate_steps(3), 300))[:100] == list(islice(generate_steps(3), 100))
    assert list(islice(generate_steps(3), 100)) != list(islice(generate_steps(4), 100))


def test_steps_are_ordered_by_time() -> None:
    times = [step.at for step in islice(generate_steps(5), 1000)]
    assert times == sorted(times)
    assert times[-1] > 10


def test_every_action_and_fault_occurs_in_some_plan() -> None:
    actions = [step.action for seed in range(12) for step in islice(generate_steps(seed), 500)]
    counts = Counter(type(action) for action in actions)
    assert min(counts[kind] for kind in (*get_args(UserAction), *get_args(InjectedFault))) >= 5
    request_faults = {
        fault
        for action in actions
        if isinstance(action, FailRequests | FailBinds)
        for fault in action.faults
    }
    assert request_faults == set(RequestFault)


def test_seeds_differ_in_the_faults_that_they_inject() -> None:
    faults = [
        Counter(type(step.action).__name__ for step in islice(generate_steps(seed), 1000)
                if isinstance(step.action, get_args(InjectedFault)))
        for seed in range(6)
    ]  # fmt: skip
    assert any(not fault["SlowCommits"] for fault in faults)
    assert any(fault["SlowCommits"] for fault in faults)
