"""What seeds draw: everything that can happen, in order, and the same each time."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import get_args

from phalanx.sim.faults.channel import Trouble
from phalanx.sim.faults.plan import plan
from phalanx.sim.faults.steps import Deed, Fault, Spoil, SpoilBinds


def test_a_seed_gives_the_same_steps_and_a_long_plan_begins_like_a_short_one() -> None:
    assert list(islice(plan(3), 300))[:100] == list(islice(plan(3), 100))
    assert list(islice(plan(3), 100)) != list(islice(plan(4), 100))


def test_steps_come_in_the_order_of_time() -> None:
    times = [step.at for step in islice(plan(5), 1000)]
    assert times == sorted(times)
    assert times[-1] > 10


def test_some_seed_or_other_draws_everything_that_can_happen() -> None:
    acts = [step.act for seed in range(12) for step in islice(plan(seed), 500)]
    drawn = Counter(type(act) for act in acts)
    assert min(drawn[kind] for kind in (*get_args(Deed), *get_args(Fault))) >= 5
    troubles = {one for act in acts if isinstance(act, Spoil | SpoilBinds) for one in act.troubles}
    assert troubles == set(Trouble)


def test_no_two_seeds_have_the_same_habits() -> None:
    faults = [
        Counter(type(step.act).__name__ for step in islice(plan(seed), 1000)
                if isinstance(step.act, get_args(Fault)))
        for seed in range(6)
    ]  # fmt: skip
    assert any(not one["SlowDisk"] for one in faults)
    assert any(one["SlowDisk"] for one in faults)
