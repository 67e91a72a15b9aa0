"""The lines of a recording: bad ones name file, line and reason; a killed recorder does no harm."""

from __future__ import annotations

import json

import msgspec
import pytest

from phalanx.api.dynamic_resources import DeviceClass
from phalanx.api.other_kinds import DeviceClaim
from phalanx.sim.recording.recording_format import trim_object
from phalanx.sim.workloads.workload import InvalidTrace
from tests.sim.recording.recorded_cluster import read_workload

HEADER = '{"is":"recording","at":100,"format":1}'
SYNCED = '{"is":"synced","at":100}'
NODE = json.dumps(
    {
        "is": "node",
        "at": 100,
        "name": "a",
        "node": {"metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}},
    }
)
POD_OBJECT = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u"},
    "spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]},
}
POD = json.dumps({"is": "pod", "at": 101, "key": ["default", "p"], "pod": POD_OBJECT})
LINES = [HEADER, NODE, SYNCED, POD]


def test_minimal_recording_is_read() -> None:
    workload = read_workload(LINES)
    assert [job.submit for job in workload.jobs] == [1.0]
    assert workload.jobs[0].requests == {"cpu": "1000m"}
    assert any("not stopped in order" in note for note in workload.notes)


def test_recording_with_a_configuration_is_read() -> None:
    configuration = {"kind": "KubeSchedulerConfiguration", "profiles": [{"schedulerName": "s"}]}
    header = json.dumps({**json.loads(HEADER), "configuration": configuration})
    workload = read_workload([header, *LINES[1:]])
    assert workload.history.recording.header.configuration == configuration


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("3", "must be a map, not 3"),
        (f'{{"is":"node","at":102,"name":"b","node":{"[" * 20000}}}', "nested too deeply"),
        ("{", "the JSON ends too early (column 2)"),
        ('{"is":"synced","at":NaN}', "JSON has no number NaN (column 21)"),
        ('{"is":"cat","at":102}', "is: invalid value 'cat'"),
        ('{"is":"pod","at":"x"}', 'at: must be a number, not "x"'),
        (f'{{"is":"synced","at":{"9" * 5000}}}', "at: number out of range"),
        ('{"is":"pod","at":102,"key":["a"],"pod":null}', 'with a length of 2, not ["a"]'),
        (
            '{"is":"pod","at":102,"key":["a","b"],"pod":{"spec":{"priority":"x"}}}',
            'pod.spec.priority: must be a whole number, not "x"',
        ),
        ('{"is":"pod","at":99,"key":["a","b"],"pod":null}', "at 99.0 is before the line before"),
        ('{"is":"pod","at":-1,"key":["a","b"],"pod":null}', "at is out of range: -1.0"),
    ],
)
def test_bad_line_names_file_line_and_reason(bad: str, reason: str) -> None:
    lines = [*LINES, bad, POD.replace("101", "103").replace('"p"', '"q"')]
    with pytest.raises(InvalidTrace) as caught:
        read_workload(lines)
    assert str(caught.value).startswith("test.jsonl, line 5: ")
    assert reason in str(caught.value)
    lenient = read_workload(lines, is_lenient=True)
    assert lenient.skipped == {"line cannot be read": 1}
    assert len(lenient.jobs) == 2


def test_unknown_field_names_its_line_and_is_counted_if_lenient() -> None:
    for number, line in ((1, HEADER), (4, POD)):
        lines = list(LINES)
        lines[number - 1] = line.replace('{"is"', '{"colour":"red","is"')
        with pytest.raises(InvalidTrace) as caught:
            read_workload(lines)
        assert str(caught.value) == f"test.jsonl, line {number}: colour: unknown field"
        lenient = read_workload(lines, is_lenient=True)
        assert (len(lenient.jobs), lenient.skipped) == (1, {"unknown field": 1})


def test_incomplete_last_line_of_a_killed_recorder_is_ignored() -> None:
    workload = read_workload([*LINES, POD[:40]])
    assert workload.skipped == {"last line incomplete: the recorder was killed": 1}


def test_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidTrace, match="line 1: format 9 is unknown; this version reads"):
        read_workload([HEADER.replace('"format":1', '"format":9'), *LINES[1:]])


def test_recording_without_jobs_is_refused() -> None:
    with pytest.raises(InvalidTrace, match="no job was submitted while the recording ran"):
        read_workload(LINES[:3])


def test_configuration_of_devices_and_messages_of_drivers_are_left_out() -> None:
    secret = {"opaque": {"driver": "d", "parameters": {"token": "s3cr3t"}}}
    condition = {"type": "Ready", "status": "True", "reason": "Up", "message": "s3cr3t"}
    results = [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]
    claim = {
        "metadata": {"name": "c", "annotations": {"note": "s3cr3t"}},
        "spec": {"devices": {"requests": [{"name": "r"}], "config": [secret]}},
        "status": {
            "allocation": {"devices": {"results": results, "config": [secret]}},
            "devices": [{"driver": "d", "pool": "p", "device": "x", "conditions": [condition]}],
        },
    }
    device_class = {"metadata": {"name": "c"}, "spec": {"config": [secret]}}
    kept = trim_object(msgspec.convert(claim, DeviceClaim))
    other = trim_object(msgspec.convert(device_class, DeviceClass))
    assert b"s3cr3t" not in msgspec.json.encode([kept, other])
    assert kept.status.allocation == {"devices": {"results": results}}
    assert [one.type for one in kept.status.devices[0].conditions] == ["Ready"]
