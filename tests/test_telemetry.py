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
    merge_pages,
)

REQUESTS = MetricSpec(Counter, "api_requests_total", "How often.", ("code", "by"))
CAPACITY = MetricSpec(Gauge, "capacity", "How much.", ("node",))
SECONDS = MetricSpec(Histogram, "seconds", "How long.", (), (0.1, 1, 10))


def lines(metrics: Metrics) -> list[str]:
    return metrics.render().splitlines()


def test_a_metric_without_series_is_not_rendered() -> None:
    assert Metrics().render() == ""


def test_counters_are_rendered_by_labels() -> None:
    metrics = Metrics()
    metrics.series(REQUESTS, "200", "you").add()
    metrics.series(REQUESTS, "200", "you").add(2)
    metrics.series(REQUESTS, "404", "me").add()
    assert lines(metrics) == [
        "# HELP api_requests_total How often.",
        "# TYPE api_requests_total counter",
        'api_requests_total{code="200",by="you"} 3',
        'api_requests_total{code="404",by="me"} 1',
    ]


def test_histogram_buckets_are_cumulative() -> None:
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


def test_metrics_are_sorted_by_name_and_series_by_labels() -> None:
    metrics = Metrics()
    metrics.series(CAPACITY, "b").value = 2
    metrics.series(CAPACITY, "a").value = 0.5
    metrics.series(REQUESTS, "200", "you")
    samples = [line for line in lines(metrics) if not line.startswith("#")]
    assert samples == [
        'api_requests_total{code="200",by="you"} 0',
        'capacity{node="a"} 0.5',
        'capacity{node="b"} 2',
    ]


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.series(CAPACITY, 'a "b"\\\n').value = 1
    assert lines(metrics)[-1] == r'capacity{node="a \"b\"\\\n"} 1'


def test_replace_series_removes_series_that_are_not_given() -> None:
    metrics = Metrics()
    metrics.replace_series(CAPACITY, {("a",): 1, ("b",): 2})
    metrics.replace_series(CAPACITY, {("b",): 3})
    assert [line for line in lines(metrics) if not line.startswith("#")] == ['capacity{node="b"} 3']


class Subject:
    size = 1


def test_on_collect_reads_a_subject_at_each_rendering_while_it_is_alive() -> None:
    metrics, subject = Metrics(), Subject()

    def read(subject: Subject) -> None:
        metrics.series(CAPACITY, "a").value = subject.size

    metrics.on_collect(subject, read)
    assert lines(metrics)[-1] == 'capacity{node="a"} 1'
    subject.size = 2
    assert lines(metrics)[-1] == 'capacity{node="a"} 2'
    subject.size = 3
    del subject
    gc.collect()
    assert lines(metrics)[-1] == 'capacity{node="a"} 2'


def test_stages_are_rendered_with_seconds_and_counts() -> None:
    metrics = Metrics()
    meter = StageMeter(metrics)
    for _ in range(3):
        with meter.stage("parse"):
            pass
    assert 'phalanx_stage_seconds_count{stage="parse"} 3' in lines(metrics)
    assert metrics.series(STAGE_SECONDS, "parse").total > 0


def test_exponential_buckets_grow_by_a_factor() -> None:
    assert exponential_buckets(0.5, 2, 4) == (0.5, 1, 2, 4)


def test_merged_pages_have_one_header_for_each_metric() -> None:
    pages = Metrics(), Metrics()
    for number, metrics in enumerate(pages):
        metrics.series(REQUESTS, "200", f"process-{number}").add()
    pages[1].series(CAPACITY, "a").value = 3
    assert merge_pages(*(page.render() for page in pages)).splitlines() == [
        "# HELP api_requests_total How often.",
        "# TYPE api_requests_total counter",
        'api_requests_total{code="200",by="process-0"} 1',
        'api_requests_total{code="200",by="process-1"} 1',
        "# HELP capacity How much.",
        "# TYPE capacity gauge",
        'capacity{node="a"} 3',
    ]
