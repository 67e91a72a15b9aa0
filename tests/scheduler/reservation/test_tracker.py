"""How many entities get a reservation, and how many are examined for it."""

from __future__ import annotations

from tests.scheduler.reservation.test_reservation import members, two_busy_nodes


def test_many_infeasible_gangs_do_not_keep_the_next_one_from_its_reservation() -> None:
    scheduler = two_busy_nodes()
    for number in range(70):
        name = f"impossible-{number}"
        scheduler.submit(name, members(name, 9 + number))
    scheduler.run_pass(0)
    scheduler.submit("large", members("large", 2))
    scheduler.run_pass(1)
    # No event follows: the tracker says itself when it is to be asked again.
    now = 62.0
    while now < 100 and not scheduler.reservations:
        scheduler.run_pass(now)
        now = scheduler.state.reservations.next_time() or 100
    assert list(scheduler.reservations) == ["large"]


def test_conservative_makes_more_reservations_than_easy_has_levels() -> None:
    scheduler = two_busy_nodes(mode="Conservative", depth=40)
    for number in range(45):
        scheduler.submit(f"g{number}", members(f"g{number}", 3, seconds=100))
    scheduler.run_pass(0)
    scheduler.run_pass(70)
    assert len(scheduler.reservations) == 40
