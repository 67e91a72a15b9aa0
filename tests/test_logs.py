"""The log: levels, both formats, and where lines go."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx import logs
from phalanx.api.meta import Key

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


def test_an_unconfigured_program_prints_nothing() -> None:
    program = "from phalanx import logs; logs.component('test').warning('message')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


# ---- rotation ------------------------------------------------------------------------------------


def write_lines(file: Path, writers: int, lines: int, max_bytes: int) -> None:
    """Append lines through several handlers in turn, as several processes do."""
    handlers = [
        logs.SharedFileHandler(file, max_bytes=max_bytes, max_rotated=3) for _ in range(writers)
    ]
    for number in range(lines):
        record = logging.makeLogRecord({"msg": f"line {number:04}", "levelno": logging.INFO})
        handlers[number % writers].emit(record)
    for handler in handlers:
        handler.close()


@pytest.mark.parametrize("writers", [1, 2, 5])
def test_log_file_is_rotated_and_some_old_files_are_kept(tmp_path: Path, writers: int) -> None:
    file = tmp_path / "log"
    write_lines(file, writers, lines=100, max_bytes=200)
    files = [tmp_path / name for name in ("log.3", "log.2", "log.1", "log")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(path.stat().st_size <= 200 + 10 for path in files)
    kept = [line for path in files for line in path.read_text().splitlines()]
    assert kept == [f"line {number:04}" for number in range(100 - len(kept), 100)]
    assert len(kept) > 60


def test_processes_that_share_a_log_file_lose_no_line_when_it_is_rotated(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from tests.test_logs import write_lines;"
        "write_lines(pathlib.Path(sys.argv[1]), 1, 500, 4500)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "log")]
    processes = [subprocess.Popen(command, cwd=Path(__file__).parents[1]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    files = [tmp_path / name for name in ("log", "log.1", "log.2", "log.3")]
    assert sum(len(path.read_text().splitlines()) for path in files) == 1500
    assert all(4500 <= path.stat().st_size <= 4600 for path in files[1:])


def test_log_file_that_cannot_be_rotated_is_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, max_rotated: int) -> None:
        raise PermissionError

    monkeypatch.setattr(logs, "rotate_files", refuse)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    write_lines(tmp_path / "log", 1, lines=50, max_bytes=100)
    assert len((tmp_path / "log").read_text().splitlines()) == 50
