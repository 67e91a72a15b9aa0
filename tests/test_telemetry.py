from __future__ import annotations

import gc

from phalanx.telemetry import (
    STAGE_SECONDS,
    Counter,
    Gauge,
    Histogram,
    Metrics,
    MetricSpec,
    StageMeter,
    exponential_buckets,
)

ASKED = MetricSpec(Counter, "asked_total", "How often.", ("code", "by"))
ROOM = MetricSpec(Gauge, "room", "How much.", ("node",))
SECONDS = MetricSpec(Histogram, "seconds", "How long.", (), (0.1, 1, 10))


def lines(metrics: Metrics) -> list[str]:
    return metrics.render().splitlines()


def test_a_row_that_nobody_feeds_is_not_told() -> None:
    assert Metrics().render() == ""


def test_counters_are_told_by_their_labels() -> None:
    metrics = Metrics()
    metrics.series(ASKED, "200", "you").add()
    metrics.series(ASKED, "200", "you").add(2)
    metrics.series(ASKED, "404", "me").add()
    assert lines(metrics) == [
        "# HELP asked_total How often.",
        "# TYPE asked_total counter",
        'asked_total{code="200",by="you"} 3',
        'asked_total{code="404",by="me"} 1',
    ]


def test_a_histogram_counts_all_that_is_within_each_bound() -> None:
    metrics = Metrics()
    series = metrics.series(SECONDS)
    for value in (0.05, 0.1, 0.5, 10, 11):
        series.observe(value)
    series.observe(2, times=3)
    assert lines(metrics)[2:] == [
        'seconds_bucket{le="0.1"} 2',
        'seconds_bucket{le="1"} 3',
        'seconds_bucket{le="10"} 7',
        'seconds_bucket{le="+Inf"} 8',
        "seconds_sum 27.65",
        "seconds_count 8",
    ]


def test_rows_stand_in_the_order_of_their_names_and_series_in_that_of_their_labels() -> None:
    metrics = Metrics()
    metrics.series(ROOM, "b").value = 2
    metrics.series(ROOM, "a").value = 0.5
    metrics.series(ASKED, "200", "you")
    told = [line for line in lines(metrics) if not line.startswith("#")]
    assert told == ['asked_total{code="200",by="you"} 0', 'room{node="a"} 0.5', 'room{node="b"} 2']


def test_labels_may_hold_anything() -> None:
    metrics = Metrics()
    metrics.series(ROOM, 'a "b"\\\n').value = 1
    assert lines(metrics)[-1] == r'room{node="a \"b\"\\\n"} 1'


def test_what_is_said_anew_takes_the_place_of_what_was() -> None:
    metrics = Metrics()
    metrics.replace_series(ROOM, {("a",): 1, ("b",): 2})
    metrics.replace_series(ROOM, {("b",): 3})
    assert [line for line in lines(metrics) if not line.startswith("#")] == ['room{node="b"} 3']


class Subject:
    size = 1


def test_what_is_read_is_read_whenever_somebody_asks_as_long_as_it_is_there() -> None:
    metrics, subject = Metrics(), Subject()

    def read(subject: Subject) -> None:
        metrics.series(ROOM, "a").value = subject.size

    metrics.on_collect(subject, read)
    assert lines(metrics)[-1] == 'room{node="a"} 1'
    subject.size = 2
    assert lines(metrics)[-1] == 'room{node="a"} 2'
    subject.size = 3
    del subject
    gc.collect()
    assert lines(metrics)[-1] == 'room{node="a"} 2'


def test_stages_are_told_with_their_seconds_and_counts() -> None:
    metrics = Metrics()
    meter = StageMeter(metrics)
    for _ in range(3):
        with meter.stage("parse"):
            pass
    assert 'phalanx_stage_seconds_count{stage="parse"} 3' in lines(metrics)
    assert metrics.series(STAGE_SECONDS, "parse").total > 0


def test_bounds_grow_by_a_factor() -> None:
    assert exponential_buckets(0.5, 2, 4) == (0.5, 1, 2, 4)
