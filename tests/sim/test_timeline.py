from __future__ import annotations

from phalanx.sim.timeline import Timeline, TimelineLine, condense


def condensed(*lines: TimelineLine) -> list[tuple[float, str, str]]:
    return [(line.time, line.event, line.text or ",".join(line.nodes)) for line in condense(lines)]


def waiting(time: float, text: str) -> TimelineLine:
    return TimelineLine(time, "a", "Waiting", text)


def running(time: float, pods: int) -> TimelineLine:
    return TimelineLine(time, "a", "Running", str(pods))


def placed(time: float, *nodes: str, word: str = "Placed") -> TimelineLine:
    return TimelineLine(time, "a", word, nodes=nodes)


def test_text_is_aligned_with_short_times() -> None:
    lines = (
        TimelineLine(0.0123, "train-a", "Placed", nodes=("n-1", "n-0", "n-1")),
        TimelineLine(1.26, "b", "Waiting", "for capacity"),
        TimelineLine(60.0, "train-a", "Finished"),
    )
    timeline = Timeline(lines, "")
    assert timeline.text() == (
        "t=0    train-a  Placed    n-0, n-1 x2\n"
        "t=1.3  b        Waiting   for capacity\n"
        "t=60   train-a  Finished\n"
    )
    assert timeline.text(decimals=3).splitlines()[0].startswith("t=0.012  train-a")


def test_lines_of_one_moment_have_a_fixed_order() -> None:
    waits, runs = (
        TimelineLine(0.021, "a", "Waiting", "2 more"),
        TimelineLine(0.034, "a", "Running", "4 pods"),
    )
    ends, starts = (
        TimelineLine(0.01, "z", "Finished"),
        TimelineLine(0.02, "a", "Placed", nodes=("n",)),
    )
    text = Timeline((ends, starts, waits, runs), "").text()
    assert [line.split()[2] for line in text.splitlines()] == [
        "Finished", "Placed", "Running", "Waiting",
    ]  # fmt: skip
    faster = (
        ends,
        starts,
        TimelineLine(0.021, "a", "Running", "4 pods"),
        TimelineLine(0.034, "a", "Waiting", "2 more"),
    )
    assert Timeline(faster, "").text() == text


def test_empty_timeline_has_an_empty_text() -> None:
    assert Timeline((), "").text() == ""


def test_short_states_are_omitted() -> None:
    assert condensed(waiting(0, "x"), placed(0.05, "n"), running(0.06, 1)) == [
        (0.05, "Placed", "n"),
        (0.06, "Running", "1"),
    ]


def test_lasting_states_are_kept() -> None:
    assert condensed(waiting(0, "x"), placed(0.2, "n")) == [
        (0, "Waiting", "x"),
        (0.2, "Placed", "n"),
    ]


def test_running_and_waiting_hold_at_the_same_time() -> None:
    assert condensed(running(0, 2), waiting(0.01, "2 more")) == [
        (0, "Running", "2"),
        (0.01, "Waiting", "2 more"),
    ]


def test_state_that_returns_after_a_moment_is_not_repeated() -> None:
    assert condensed(waiting(0, "x"), waiting(5, "y"), waiting(5.01, "x")) == [(0, "Waiting", "x")]


def test_state_is_repeated_after_a_milestone() -> None:
    lines = condensed(running(0, 4), placed(9, "n", word="Lost"), running(9.01, 4))
    assert [word for _, word, _ in lines] == ["Running", "Lost", "Running"]


def test_members_placed_shortly_after_each_other_are_merged() -> None:
    lines = condensed(placed(0, "n"), running(0.01, 1), placed(0.02, "m", word="Joined"))
    assert lines == [(0.02, "Placed", "n,m")]


def test_members_placed_much_later_join() -> None:
    lines = condensed(placed(0, "n"), placed(5, "m", word="Joined"))
    assert lines == [(0, "Placed", "n"), (5, "Joined", "m")]


def test_lines_are_ordered_by_time() -> None:
    lines = [
        TimelineLine(1, "b", "Gone"),
        TimelineLine(0, "a", "Gone"),
        TimelineLine(2, "b", "Gone"),
    ]
    assert [line.time for line in condense(lines)] == [0, 1, 2]
