"""The log: levels, both formats, and where lines go."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx import logs
from phalanx.api.meta import Key


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Undo `configure`, which is meant for a whole process."""
    logger = logging.getLogger(logs.ROOT)
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    for handler in logger.handlers:
        handler.close()
    logger.handlers[:], logger.level, logger.propagate = before[0], before[1], before[2]
    logger.setLevel(before[1])


LOG = logs.component("tester")


def text_after_time(stream: io.StringIO) -> list[str]:
    return [line.partition(" ")[2] for line in stream.getvalue().splitlines()]


def test_text_line_has_time_level_component_message_and_fields() -> None:
    stream = io.StringIO()
    logs.configure(stream)
    LOG.info("PodGroup placed", kind="PodGroup", key=Key("default", "train"), pods=3)
    (line,) = stream.getvalue().splitlines()
    time, _, rest = line.partition(" ")
    assert rest == "INFO tester: PodGroup placed kind=PodGroup key=default/train pods=3"
    assert time.endswith("Z")
    assert len(time) == len("2027-01-15T08:00:00.000Z")


def test_values_with_spaces_or_quotes_are_quoted_and_floats_are_rounded() -> None:
    stream = io.StringIO()
    logs.configure(stream)
    LOG.warning(
        "retrying", reason='said "no"', duration=1 / 3, names=["a", "b"], empty="", none=None
    )
    assert text_after_time(stream) == [
        'WARNING tester: retrying reason="said \\"no\\"" duration=0.333 names=a,b empty="" '
        "none=None"
    ]


def test_a_value_never_breaks_the_line() -> None:
    stream = io.StringIO()
    logs.configure(stream)
    LOG.info("message", text="first\nsecond")
    assert text_after_time(stream) == ['INFO tester: message text="first\\nsecond"']


def test_json_line_is_one_object_with_the_fields_beside_the_message() -> None:
    stream = io.StringIO()
    logs.configure(stream, log_format="json")
    LOG.info(
        "placed", key=Key("default", "train"), pods=3, duration=0.5, names=("a", Key("", "b")),
        reason=ValueError("wrong"), ready=True, node=None,
    )  # fmt: skip
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO",
        "component": "tester",
        "message": "placed",
        "key": "default/train",
        "pods": 3,
        "duration": 0.5,
        "names": ["a", "b"],
        "reason": "wrong",
        "ready": True,
        "node": None,
    }


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    logs.configure(stream)
    assert (LOG.is_debug(), LOG.is_info()) == (False, True)
    LOG.debug("hidden")
    LOG.info("shown")
    logs.configure(stream, level=logging.DEBUG)
    assert LOG.is_debug()
    LOG.debug("detail")
    assert text_after_time(stream) == ["INFO tester: shown", "DEBUG tester: detail"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_error_can_carry_its_traceback(log_format: logs.Format) -> None:
    stream = io.StringIO()
    logs.configure(stream, log_format=log_format)
    try:
        raise ValueError("broken")
    except ValueError:
        LOG.error("bug", exc_info=True, key="default/train")
    first, *rest = stream.getvalue().splitlines()
    if log_format == "json":
        assert json.loads(first)["traceback"].endswith("ValueError: broken")
        assert rest == []
    else:
        assert first.endswith("ERROR tester: bug key=default/train")
        assert rest[-1] == "ValueError: broken"


def test_lines_go_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "log"
    logs.configure(file=file)
    LOG.info("one")
    handler = logs.configure(file=file)
    LOG.info("two")
    handler.flush()
    assert [line.partition(" ")[2] for line in file.read_text().splitlines()] == [
        "INFO tester: one",
        "INFO tester: two",
    ]


def test_configure_replaces_earlier_settings() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(first)
    logs.configure(second)
    LOG.info("message")
    assert first.getvalue() == ""
    assert text_after_time(second) == ["INFO tester: message"]


def test_a_record_names_the_caller_and_has_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    LOG.warning("message", pods=3)
    (record,) = caplog.records
    assert Path(record.pathname) == Path(__file__)
    assert record.__dict__["fields"] == {"pods": 3}


def test_an_unconfigured_program_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    root, logger = logging.getLogger(), logging.getLogger(logs.ROOT)
    before, root.handlers = root.handlers, []
    try:
        LOG.warning("message")
    finally:
        root.handlers = before
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]
    assert capfd.readouterr().err == ""
