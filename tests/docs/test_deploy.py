"""The rules and the dashboard in deploy/ are PromQL that names metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from phalanx.telemetry import Histogram
from tools.metrics import SECTIONS

DEPLOY = Path(__file__).parents[2] / "deploy"
#: Labels that Prometheus adds to every series, and a metric of its own.
TARGET_LABELS = {"job", "instance"}
OTHER_METRICS = {"up": TARGET_LABELS}
SPECS = {spec.name: spec for _, _, specs in SECTIONS for spec in specs}


def queries() -> Iterator[tuple[str, str]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        yield rule["alert"], rule["expr"]
    for panel in json.loads((DEPLOY / "dashboard.json").read_text())["panels"]:
        for number, target in enumerate(panel["targets"]):
            yield f"{panel['title']} {number}", target["expr"]


def parts(query: str, kind: type[Any]) -> list[Any]:
    """Return the parts of one kind of a query; raises ValueError if it is no PromQL."""
    visited: list[promql.Expr] = []
    promql.walk(promql.parse(query), visited.append)
    return [part for part in visited if isinstance(part, kind)]


def grouping_labels(query: str) -> set[str]:
    """Return the labels that the aggregations of a query keep."""
    modifiers = [part.modifier for part in parts(query, promql.AggregateExpr) if part.modifier]
    assert all(one.type == promql.AggModifierType.By for one in modifiers)
    return {label for one in modifiers for label in one.labels}


@pytest.mark.parametrize(("name", "query"), list(queries()))
def test_every_query_names_metrics_and_labels_that_exist(name: str, query: str) -> None:
    (selector,) = parts(query, promql.VectorSelector)
    metric = selector.name
    if metric in OTHER_METRICS:
        known = OTHER_METRICS[metric]
    else:
        spec = SPECS[metric.removesuffix("_bucket")]
        is_histogram = spec.series_type is Histogram
        assert metric.endswith("_bucket") == is_histogram, metric
        known = TARGET_LABELS | set(spec.labels) | ({"le"} if is_histogram else set())
    used = {matcher.name for matcher in selector.matchers.matchers} | grouping_labels(query)
    assert used <= known, f"{metric} has no labels {sorted(used - known)}"


@pytest.mark.parametrize("query", ["sum(rate(up[5m])", "rate(up)", "sum by le (up)", "rat(up[5m])"])
def test_text_that_is_no_query_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parts(query, promql.VectorSelector)


def test_every_alert_says_what_to_do_and_names_labels_that_its_query_keeps() -> None:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        texts = rule["annotations"]
        assert {"summary", "description"} <= set(texts)
        named = set(re.findall(r"\$labels\.(\w+)", " ".join(texts.values())))
        assert named <= grouping_labels(rule["expr"]), rule["alert"]
