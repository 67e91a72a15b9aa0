"""The alert rules and the dashboard in deploy/ query metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from phalanx.telemetry import Histogram
from tools.metrics import SECTIONS

DEPLOY = Path(__file__).parents[2] / "deploy"
#: Labels that Prometheus adds to every series, and a metric of its own.
TARGET_LABELS = {"job", "instance"}
OTHER_METRICS = {"up": TARGET_LABELS}
SPECS = {spec.name: spec for _, _, specs in SECTIONS for spec in specs}
#: Words of queries that are no metric: functions, aggregations and their modifiers.
WORDS = {
    "absent", "by", "histogram_quantile", "increase", "max", "min_over_time", "rate", "sum",
}  # fmt: skip
WORD = re.compile(r"\b[a-z_][\w]*\b")
MATCHERS = re.compile(r"\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"[^"]*"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")
DURATION = re.compile(r"\[\w+\]")


def queries() -> Iterator[tuple[str, str]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        yield rule["alert"], rule["expr"]
    for panel in json.loads((DEPLOY / "dashboard.json").read_text())["panels"]:
        for number, target in enumerate(panel["targets"]):
            yield f"{panel['title']} {number}", target["expr"]


@pytest.mark.parametrize(("name", "query"), list(queries()))
def test_every_query_names_metrics_and_labels_that_exist(name: str, query: str) -> None:
    plain = DURATION.sub("", GROUPING.sub("", MATCHERS.sub("", query)))
    (metric,) = {word for word in WORD.findall(plain) if word not in WORDS}
    if metric in OTHER_METRICS:
        known = OTHER_METRICS[metric]
    else:
        spec = SPECS[metric.removesuffix("_bucket")]
        is_histogram = spec.series_type is Histogram
        assert metric.endswith("_bucket") == is_histogram, metric
        known = TARGET_LABELS | set(spec.labels) | ({"le"} if is_histogram else set())
    used = {label for text in MATCHERS.findall(query) for label in MATCHER.findall(text)}
    used |= {label.strip() for text in GROUPING.findall(query) for label in text.split(",")}
    assert used <= known, f"{metric} has no labels {sorted(used - known)}"


def test_every_alert_says_what_to_do_and_names_labels_that_its_query_keeps() -> None:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        texts = rule["annotations"]
        assert {"summary", "description"} <= set(texts)
        named = set(re.findall(r"\$labels\.(\w+)", " ".join(texts.values())))
        kept = {one.strip() for text in GROUPING.findall(rule["expr"]) for one in text.split(",")}
        assert named <= kept, rule["alert"]
