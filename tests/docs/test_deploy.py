"""The alert rules and the dashboard in deploy/ query metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
#: Metrics of Prometheus itself.
OTHER_METRICS = {"up"}
#: Names of metrics in a query; histograms are queried by their buckets.
METRIC = re.compile(r"\b((?:scheduler|phalanx|workqueue|job_controller)_\w+|up)(?=[{\[)\s]|$)")


def known_metrics() -> set[str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    return set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) | OTHER_METRICS


def metrics_of(query: str) -> set[str]:
    return {name.removesuffix("_bucket") for name in METRIC.findall(query)}


def test_every_alert_queries_metrics_that_exist_and_says_what_to_do() -> None:
    (group,) = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        used = metrics_of(rule["expr"])
        assert used, rule["alert"]
        assert used <= known_metrics(), rule["alert"]
        assert {"summary", "description"} <= set(rule["annotations"])


def test_every_panel_queries_metrics_that_exist() -> None:
    panels = json.loads((ROOT / "deploy" / "dashboard.json").read_text())["panels"]
    for panel in panels:
        for target in panel["targets"]:
            used = metrics_of(target["expr"])
            assert used, panel["title"]
            assert used <= known_metrics(), panel["title"]
