from __future__ import annotations

from tools.metrics import FILE, NOT_PROVIDED, SECTIONS, render_document


def test_the_page_about_metrics_tells_what_is_measured() -> None:
    assert FILE.read_text() == render_document(), "run: python -m tools.metrics --write"


def test_no_two_rows_have_the_same_name() -> None:
    names = [row.name for _, _, rows in SECTIONS for row in rows]
    assert len(set(names)) == len(names)


def test_what_is_measured_is_not_said_to_be_missing() -> None:
    names = {row.name for _, _, rows in SECTIONS for row in rows}
    absent = [f"scheduler_{name}" for group in NOT_PROVIDED.values() for name in group]
    assert [name for name in absent if name in names] == []


def test_every_row_is_told_in_a_sentence() -> None:
    rows = [row for _, _, rows in SECTIONS for row in rows]
    assert [row.name for row in rows if not row.help.endswith(".")] == []
    assert [row.name for row in rows if "|" in row.help] == []


def test_counters_are_named_as_such() -> None:
    rows = [row for _, _, rows in SECTIONS for row in rows]
    assert [
        row.name
        for row in rows
        if (row.series_type.type == "counter") != row.name.endswith("_total")
    ] == []  # fmt: skip
