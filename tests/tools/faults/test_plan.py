"""What seeds draw: everything that can happen, in order, and the same each time."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import get_args

from tools.faults.channel import RequestFault
from tools.faults.plan import generate_steps
from tools.faults.steps import FailBinds, FailRequests, InjectedFault, UserAction


def test_a_seed_gives_the_same_steps_and_a_long_plan_begins_like_a_short_one() -> None:
    assert list(islice(generate_steps(3), 300))[:100] == list(islice(generate_steps(3), 100))
    assert list(islice(generate_steps(3), 100)) != list(islice(generate_steps(4), 100))


def test_steps_come_in_the_order_of_time() -> None:
    times = [step.at for step in islice(generate_steps(5), 1000)]
    assert times == sorted(times)
    assert times[-1] > 10


def test_some_seed_or_other_draws_everything_that_can_happen() -> None:
    acts = [step.action for seed in range(12) for step in islice(generate_steps(seed), 500)]
    drawn = Counter(type(act) for act in acts)
    assert min(drawn[kind] for kind in (*get_args(UserAction), *get_args(InjectedFault))) >= 5
    troubles = {
        one for act in acts if isinstance(act, FailRequests | FailBinds) for one in act.faults
    }
    assert troubles == set(RequestFault)


def test_no_two_seeds_have_the_same_habits() -> None:
    faults = [
        Counter(type(step.action).__name__ for step in islice(generate_steps(seed), 1000)
                if isinstance(step.action, get_args(InjectedFault)))
        for seed in range(6)
    ]  # fmt: skip
    assert any(not one["SlowDisk"] for one in faults)
    assert any(one["SlowDisk"] for one in faults)
