"""The readers of CSV traces."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from phalanx.sim.workloads.csv_traces import read_node_list
from phalanx.sim.workloads.trace_formats import read_trace
from phalanx.sim.workloads.workload import InvalidTrace, TraceFile, TraceWorkload

PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster

2017-09-04 10:30:41,100.0,8,800.0,a
2017-09-04 10:31:41,50.5,16,808.0,b
2017-09-04 10:30:51,70,12,840,b
2017-09-04 10:30:51,0,1,0,b
"""
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,1000,,LS,Running,0,100,0
p1,6000,12288,1,460,V100|A10,BE,Running,10,60,10
p2,6000,12288,4,1000,,Burstable,Running,20,60,20
p3,500,0,0,0,,BE,Running,20,60,
"""
KALOS = """\
job_id,arrival_time,num_iteration,iteration_computing_time,iteration_networking_time,gpu_workers,ps,\
gpu_per_worker,cpu_per_gpu_worker,cpu_per_ps_worker,tensorsizes,profiled_network
0,5.0,208,0.5,0.25,8,0,8.0,12.5,15.0,10.0,500
"""


def read(text: str, *, lenient: bool = False) -> TraceWorkload:
    return read_trace(TraceFile("trace.csv", text.splitlines(), lenient))


def test_philly_job_is_a_pod_or_a_gang_of_whole_nodes() -> None:
    workload = read(PHILLY)
    gpus = [(job.submit, job.pods, job.requests["nvidia.com/gpu"]) for job in workload.jobs]
    assert gpus == [(0, 1, "8"), (10, 3, "4"), (60, 2, "8")]
    assert [job.owner for job in workload.jobs] == ["a", "b", "b"]
    assert workload.jobs[2].run_time == workload.jobs[2].estimate == 50.5
    assert workload.skipped == {"run time not positive": 1}
    assert "true run times" in workload.notes[0]


def test_time_zone_of_a_submission_counts() -> None:
    text = PHILLY.replace("10:31:41,", "10:31:41+01:00,")
    assert [job.submit for job in read(text).jobs] == [0, 3540, 3550]


def test_column_that_exists_twice_is_named() -> None:
    with pytest.raises(InvalidTrace, match=r'trace.csv, line 1: column "cluster" exists twice'):
        read(PHILLY.replace(",cluster\n", ",cluster,cluster\n"))


def test_nodes_of_openb_are_read_and_bad_ones_named() -> None:
    text = "sn,cpu_milli,memory_mib,gpu,model\na,64000,1024,2,T4\nb,32000,1024,0,\n"
    first, second = read_node_list(TraceFile("nodes.csv", text.splitlines()))
    assert first.status.allocatable["nvidia.com/milli-gpu"] == "2000"
    assert first.metadata.labels["gpu.model"] == "T4"
    assert "nvidia.com/milli-gpu" not in second.status.allocatable
    for bad, reason in (
        (text.replace("\nb,", "\na,"), 'line 3: sn "a" is empty or exists twice'),
        (text.replace("1024,2", "1024,-2"), "line 2: gpu is negative: -2"),
        (text.replace("gpu,model", "gpus,model"), 'line 1: unknown column "gpus"'),
        ("sn,cpu_milli,memory_mib,gpu,model\n", "contains no nodes"),
    ):
        with pytest.raises(InvalidTrace) as error:
            read_node_list(TraceFile("nodes.csv", bad.splitlines()))
        assert reason in str(error.value)


def test_openb_pod_requests_a_share_of_a_gpu_or_whole_ones() -> None:
    jobs = read(OPENB).jobs
    shares = [job.requests.get("nvidia.com/milli-gpu") for job in jobs]
    assert shares == ["1000", "460", "4000", None]
    assert jobs[1].node_labels == {"gpu.model": ("A10", "V100")}
    assert [job.priority for job in jobs] == [100, 0, 50, 0]
    assert (jobs[1].requests["cpu"], jobs[1].requests["memory"]) == ("6000m", "12288Mi")


def test_kalos_job_is_a_gang_of_workers() -> None:
    (job,) = read(KALOS).jobs
    assert (job.pods, job.run_time) == (8, 104)
    assert job.requests == {"cpu": "100000m", "nvidia.com/gpu": "8"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PHILLY.replace("100.0,8", "100.0,0"), "line 3: num_gpus must be from 1 to 1000000"),
        (PHILLY.replace("2017-09-04 10:30:41", "today"), 'line 3: timestamp "today" is not a time'),
        (PHILLY.replace("2017-09-04 10:30:41", "9" * 5000), f'line 3: timestamp "{"9" * 40}…"'),
        (
            PHILLY.replace("100.0,8", f"100.0,{'9' * 5000}"),
            f"line 3: num_gpus: {'9' * 40}… is out of range",
        ),
        (PHILLY.replace(",800.0,a", ",a"), "line 3: has 4 values for 5 columns"),
        (PHILLY.replace("100.0,8", "x,8"), 'line 3: duration: "x" is not a number'),
        (PHILLY.replace("100.0,8", "-1,8"), "line 3: duration is negative: -1"),
        (PHILLY.replace("100.0,8", "nan,8"), "line 3: duration: nan is out of range"),
        (PHILLY.replace(",800.0,a", ',800.0,"a'), "line 3: unexpected end of data"),
        (OPENB.replace("1,1000,,LS", "-1,1000,,LS"), "line 2: num_gpu is negative: -1"),
        (OPENB.replace("1,1000,,LS", "1,1500,,LS"), "line 2: gpu_milli must be from 0 to 1000"),
        (OPENB.replace("0,100,0", "100,50,0"), "line 2: deletion_time is before creation_time: 50"),
        (OPENB.replace(",LS,", ",XX,"), 'line 2: unknown qos "XX"; known: LS, Guaranteed'),
        (OPENB.replace("Running,0,", "Running,-1,"), "line 2: creation_time is negative: -1"),
        (OPENB.replace("p0,12000", "p0,-1"), "line 2: cpu_milli is negative: -1"),
    ],
)
def test_bad_row_is_named_and_skipped_if_lenient(text: str, reason: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        read(text)
    assert f"trace.csv, {reason}" in str(error.value)
    assert read(text, lenient=True).skipped["line cannot be read"] == 1


def test_negative_arrival_is_rejected() -> None:
    with pytest.raises(InvalidTrace, match=r"line 2: arrival_time is negative: -5\.0"):
        read(KALOS.replace("0,5.0", "0,-5.0"))


def test_unknown_column_is_named_and_ignored_if_lenient() -> None:
    text = PHILLY.replace("timestamp,", "colour,timestamp,").replace("2017-", "red,2017-")
    with pytest.raises(InvalidTrace, match=r'trace\.csv, line 1: unknown column "colour"'):
        read(text)
    workload = read(text, lenient=True)
    assert workload.jobs == read(PHILLY).jobs
    assert workload.skipped == {"run time not positive": 1, "unknown column": 1}


def test_missing_column_is_named_even_if_lenient() -> None:
    with pytest.raises(InvalidTrace, match='line 1: column "cluster" is missing'):
        read(PHILLY.replace(",cluster", ""), lenient=True)


def test_quoted_header_is_read() -> None:
    header = '"timestamp", "duration", "num_gpus", "gpu_time", "cluster"'
    assert read(PHILLY.replace(PHILLY.splitlines()[0], header)).jobs == read(PHILLY).jobs


@pytest.mark.parametrize(
    "line",
    [
        "name,time,application,num_replicas,batch_size",
        "gpu_model,gpu_capacity_num,cpu_num,node_name",
        "instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,creation_time",
        '{"command": "exporter.py -i delay", "jobs": [{"id": 1, "profile": "1", "res": 4}]}',
        "Transformer (batch size 128)\tpython3 train.py -data %s/a.pt -batch_size 128 "
        "-proj_share_weight --num_steps 3\ttranslation\t-step\t1\t44334\t2\t1\t-1.000000\t0",
    ],
)
def test_other_formats_are_refused_with_the_known_ones(line: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        read(f"{line}\n")
    known = "philly, openb, kalos, kueue, scheduler-perf, swf, recording, batsim"
    assert str(error.value) == f"trace.csv: not a trace in a known format ({known})"


@pytest.mark.parametrize("change", [str.upper, lambda text: text.replace(",", ";")])
def test_header_in_another_form_is_refused_with_the_form_to_use(
    change: Callable[[str], str],
) -> None:
    header, _, rows = PHILLY.partition("\n")
    with pytest.raises(InvalidTrace) as error:
        read(f"{change(header)}\n{change(rows)}")
    assert str(error.value).endswith(
        "; a trace of philly begins with its columns in this form: " + header
    )
