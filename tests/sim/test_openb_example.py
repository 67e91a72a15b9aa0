"""examples/simulate-openb: BestFit as a plugin, with shares of GPUs as devices."""

from __future__ import annotations

import csv
import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from phalanx.cli.simulation_file import SimulationOptions, load_simulation
from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)
from phalanx.scheduler.plugins.registry import out_of_tree_plugin
from phalanx.scheduler.policy import Profiles
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.simulation_setup import SimulationSetup
from phalanx.sim.workloads.workload import MILLI_GPU, TraceJob

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulate-openb"
MODELS = ("T4", "V100")


def load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_policy() -> Profiles:
    plugin = load_module(EXAMPLE / "best-fit" / "best_fit.py").build_plugin
    parsed = parse_configuration(
        yaml.safe_load((EXAMPLE / "policy.yaml").read_text()),
        [out_of_tree_plugin("BestFit", plugin)],
    )
    assert isinstance(parsed, SchedulerConfiguration), parsed
    return parsed.profiles


def write_lists(folder: Path, seed: int) -> tuple[Path, Path]:
    """Write nodes and pods in the form of openb; its pods may have no times."""
    chance = random.Random(seed)
    nodes, pods = folder / "nodes.csv", folder / "pods.csv"
    with nodes.open("w") as file:
        file.write("sn,cpu_milli,memory_mib,gpu,model\n")
        for number in range(12):
            gpus, model = chance.choice((1, 2, 4, 8)), chance.choice(MODELS)
            file.write(f"node-{number:02},{chance.choice((32, 64, 96))}000,262144,{gpus},{model}\n")
    with pods.open("w") as file:
        file.write("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase\n")
        for number in range(60):
            gpus, milli = chance.choice(((0, 0), (1, 1000), (1, 300), (1, 460), (1, 50), (2, 1000)))
            model = chance.choice(("", "", "T4", "T4|V100"))
            cpu = chance.choice((1000, 6000, 11300))
            file.write(f"p-{number},{cpu},16384,{gpus},{milli},{model},LS,Running\n")
    return nodes, pods


class BestFitModel:
    """Best fit by a scan of all nodes; a share comes from the first device that has room."""

    def __init__(self, path: Path) -> None:
        self.nodes: list[dict[str, Any]] = [
            {
                "cpu": int(row["cpu_milli"]),
                "memory": int(row["memory_mib"]),
                "devices": [1000] * int(row["gpu"]),
                "model": row["model"],
            }
            for row in csv.DictReader(path.read_text().splitlines())
        ]

    def place(self, job: TraceJob) -> bool:
        cpu, memory = int(job.requests["cpu"][:-1]), int(job.requests["memory"][:-2])
        milli = int(job.requests.get(MILLI_GPU, "0"))
        share, count = (milli, 1) if 0 < milli < 1000 else (1000, milli // 1000)
        best, least = None, float("inf")
        for node in self.nodes:
            free = [number for number, left in enumerate(node["devices"]) if left >= share]
            models = job.node_labels.get("gpu.model", MODELS)
            if node["cpu"] < cpu or node["memory"] < memory or len(free) < count:
                continue
            if node["model"] not in models:
                continue
            left_over = 0.5 * (node["cpu"] - cpu) / 128_000
            left_over += 0.5 * (sum(node["devices"]) - milli) / 8_000
            if left_over < least - 1e-12:
                best, least, chosen = node, left_over, free[:count]
        if best is None:
            return False
        best["cpu"] -= cpu
        best["memory"] -= memory
        for number in chosen if milli else ():
            best["devices"][number] -= share
        return True


def test_every_pod_is_placed_as_by_a_scan_of_all_nodes(tmp_path: Path) -> None:
    policy = load_policy()
    for seed in range(3):
        nodes, pods = write_lists(tmp_path, seed)
        arrivals = tmp_path / "arrivals.csv"
        command = [sys.executable, *map(str, (EXAMPLE / "resample.py", pods, nodes, seed))]
        arrivals.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
        loaded = load_simulation(arrivals, SimulationOptions(nodes=str(nodes))).setup
        setup = SimulationSetup(loaded.workload, loaded.nodes, policy, horizon=1e9)
        records, model = CoreEngine(setup).run().records, BestFitModel(nodes)
        expected = [model.place(job) for job in setup.workload.jobs]
        assert [record.first_start is not None for record in records] == expected
        assert {True, False} == set(expected)
        gpus = sum(len(node["devices"]) for node in model.nodes)
        requested = sum(int(job.requests.get(MILLI_GPU, 0)) for job in setup.workload.jobs)
        assert 1.3 <= requested / gpus / 1000 < 1.5
