"""Draws the arrivals of the published experiment from a pod list of openb.

The pods of the list come in random order, and pods of it are drawn again until the requests reach
130 % of the GPUs of the nodes. Pods never leave. The time of an arrival is what all pods up to it
request, in thousandths of a GPU, so that the report shows the allocation over the requests:

    python resample.py openb_pod_list_default.csv.gz openb_node_list_gpu_node.csv 42 > arrivals.csv
"""

from __future__ import annotations

import csv
import gzip
import random
import sys
from pathlib import Path

COLUMNS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)
#: How much is requested, as a share of the GPUs of all nodes.
SHARE = 1.3
#: Behind the end of the simulation.
NEVER = 30_000_000_000


def read_rows(path: str) -> list[dict[str, str]]:
    """Read a CSV file, which may be compressed."""
    content = Path(path).read_bytes()
    if path.endswith(".gz"):
        content = gzip.decompress(content)
    return list(csv.DictReader(content.decode().splitlines()))


def requested_milli(pod: dict[str, str]) -> int:
    """Return what a pod requests, in thousandths of a GPU; a share only of a single GPU."""
    gpus = int(pod["num_gpu"])
    return int(pod["gpu_milli"] or 0) if gpus == 1 else gpus * 1000


def main(pod_path: str, node_path: str, seed: str) -> None:
    """Write the arrivals."""
    pods, chance = read_rows(pod_path), random.Random(int(seed))
    most = SHARE * 1000 * sum(int(node["gpu"]) for node in read_rows(node_path))
    arrivals = list(pods)
    chance.shuffle(arrivals)
    writer = csv.DictWriter(sys.stdout, COLUMNS.split(","), extrasaction="ignore")
    writer.writeheader()
    total = number = 0
    while total < most:
        pod = arrivals[number] if number < len(arrivals) else chance.choice(pods)
        total += requested_milli(pod)
        times = {"creation_time": total, "deletion_time": NEVER, "scheduled_time": ""}
        name, phase = f"pod-{number:05}", "Running"
        writer.writerow(
            {"gpu_spec": "", **pod, "name": name, "qos": "LS", "pod_phase": phase, **times}
        )
        number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
