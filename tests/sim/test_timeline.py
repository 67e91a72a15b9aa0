from __future__ import annotations

from phalanx.sim.timeline import Timeline, TimelineLine, condense


def words(*lines: TimelineLine) -> list[tuple[float, str, str]]:
    return [(line.time, line.event, line.text or ",".join(line.nodes)) for line in condense(lines)]


def waiting(time: float, text: str) -> TimelineLine:
    return TimelineLine(time, "a", "Waiting", text)


def running(time: float, pods: int) -> TimelineLine:
    return TimelineLine(time, "a", "Running", str(pods))


def placed(time: float, *nodes: str, word: str = "Placed") -> TimelineLine:
    return TimelineLine(time, "a", word, nodes=nodes)


def test_the_text_is_aligned_and_times_are_short() -> None:
    lines = (
        TimelineLine(0.0123, "train-a", "Placed", nodes=("n-1", "n-0", "n-1")),
        TimelineLine(1.26, "b", "Waiting", "for room"),
        TimelineLine(60.0, "train-a", "Finished"),
    )
    timeline = Timeline(lines, "")
    assert timeline.text() == (
        "t=0    train-a  Placed    n-0, n-1 x2\n"
        "t=1.3  b        Waiting   for room\n"
        "t=60   train-a  Finished\n"
    )
    assert timeline.text(decimals=3).splitlines()[0].startswith("t=0.012  train-a")


def test_what_is_said_of_one_moment_is_told_in_the_same_order_whoever_was_faster() -> None:
    waits, runs = (
        TimelineLine(0.021, "a", "Waiting", "2 more"),
        TimelineLine(0.034, "a", "Running", "4 pods"),
    )
    ends, starts = (
        TimelineLine(0.01, "z", "Finished"),
        TimelineLine(0.02, "a", "Placed", nodes=("n",)),
    )
    told = Timeline((ends, starts, waits, runs), "").text()
    assert [line.split()[2] for line in told.splitlines()] == [
        "Finished", "Placed", "Running", "Waiting",
    ]  # fmt: skip
    faster = (
        ends,
        starts,
        TimelineLine(0.021, "a", "Running", "4 pods"),
        TimelineLine(0.034, "a", "Waiting", "2 more"),
    )
    assert Timeline(faster, "").text() == told


def test_nothing_that_happened_is_no_text() -> None:
    assert Timeline((), "").text() == ""


def test_states_that_do_not_last_are_left_out() -> None:
    assert words(waiting(0, "x"), placed(0.05, "n"), running(0.06, 1)) == [
        (0.05, "Placed", "n"),
        (0.06, "Running", "1"),
    ]


def test_states_that_last_are_told() -> None:
    assert words(waiting(0, "x"), placed(0.2, "n")) == [(0, "Waiting", "x"), (0.2, "Placed", "n")]


def test_states_of_two_sorts_are_true_side_by_side() -> None:
    assert words(running(0, 2), waiting(0.01, "2 more")) == [
        (0, "Running", "2"),
        (0.01, "Waiting", "2 more"),
    ]


def test_what_is_true_again_after_a_moment_is_not_told_again() -> None:
    assert words(waiting(0, "x"), waiting(5, "y"), waiting(5.01, "x")) == [(0, "Waiting", "x")]


def test_a_state_after_a_milestone_is_told_even_if_it_was_told_before() -> None:
    told = words(running(0, 4), placed(9, "n", word="Lost"), running(9.01, 4))
    assert [word for _, word, _ in told] == ["Running", "Lost", "Running"]


def test_members_that_come_one_after_the_other_come_together() -> None:
    told = words(placed(0, "n"), running(0.01, 1), placed(0.02, "m", word="Joined"))
    assert told == [(0.02, "Placed", "n,m")]


def test_members_that_come_much_later_join() -> None:
    told = words(placed(0, "n"), placed(5, "m", word="Joined"))
    assert told == [(0, "Placed", "n"), (5, "Joined", "m")]


def test_lines_stay_in_the_order_of_time() -> None:
    lines = [
        TimelineLine(1, "b", "Gone"),
        TimelineLine(0, "a", "Gone"),
        TimelineLine(2, "b", "Gone"),
    ]
    assert [line.time for line in condense(lines)] == [0, 1, 2]
