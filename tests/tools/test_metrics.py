from __future__ import annotations

from tools.metrics import FILE, NOT_PROVIDED, SECTIONS, render_document


def test_metrics_document_equals_the_defined_metrics() -> None:
    assert FILE.read_text() == render_document(), "run: python -m tools.metrics --write"


def test_metric_names_are_unique() -> None:
    names = [row.name for _, _, rows in SECTIONS for row in rows]
    assert len(set(names)) == len(names)


def test_metrics_listed_as_not_provided_are_not_defined() -> None:
    names = {row.name for _, _, rows in SECTIONS for row in rows}
    absent = [f"scheduler_{name}" for group in NOT_PROVIDED.values() for name in group]
    assert [name for name in absent if name in names] == []


def test_every_metric_has_a_help_sentence() -> None:
    rows = [row for _, _, rows in SECTIONS for row in rows]
    assert [row.name for row in rows if not row.help.endswith(".")] == []
    assert [row.name for row in rows if "|" in row.help] == []


def test_names_of_counters_end_with_total() -> None:
    rows = [row for _, _, rows in SECTIONS for row in rows]
    assert [
        row.name
        for row in rows
        if (row.series_type.type == "counter") != row.name.endswith("_total")
    ] == []  # fmt: skip
