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


def test_reservation_may_start_before_an_earlier_one_if_its_gang_ends_in_time() -> None:
    scheduler = two_busy_nodes(mode="Conservative")
    scheduler.submit("large", members("large", 3, seconds=500))
    for name, seconds in (("short", 900), ("long", 1100), ("second", 100)):
        scheduler.now += 1
        scheduler.submit(name, members(name, 2, seconds=seconds))
    scheduler.run_pass()
    scheduler.run_pass(70)
    starts = {name: one.expected_start for name, one in scheduler.reservations.items()}
    assert starts == {"large": 2000, "short": 1000, "long": 2500, "second": 1900}
    kept = {one.node: one.amount for one in scheduler.reservations["short"].kept}
    assert kept["n2"] > 0
    scheduler.end("a")
    assert scheduler.run_pass(1000) == ["short"]
    scheduler.end("short")
    assert scheduler.run_pass(1900) == ["second"]
    scheduler.end("second")
    scheduler.end("b")
    assert scheduler.run_pass(2000) == ["large"]
