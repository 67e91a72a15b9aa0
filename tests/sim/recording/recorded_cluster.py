"""Records a scenario in virtual time: control plane, kubelets, users and the recorder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from phalanx.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from phalanx.api.wire import Object, UserInfo
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.randomness import SeededRandom
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.sim import virtual_time
from phalanx.sim.driver import ScenarioDriver, ScenarioNodes
from phalanx.sim.recording.recorded_workload import RecordedWorkload
from phalanx.sim.recording.recorder import ClusterRecorder, RecorderOptions
from phalanx.sim.recording.replay_check import ReplayComparison, compare_replay
from phalanx.sim.recording.replay_engine import ReplayEngine
from phalanx.sim.scenario import Scenario, parse_scenario
from phalanx.sim.simulation import EPOCH, LATENCY, first_error
from phalanx.sim.simulation_setup import SimulationSetup
from phalanx.sim.workloads.trace_formats import read_trace
from phalanx.sim.workloads.workload import TraceFile
from phalanx.store.memory import MemoryStore

#: The rules of a user that may read nodes, or pods and groups of one namespace.
NODE_RULES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]
POD_RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": ["list", "watch"]},
]
#: A user without rights of its own.
READER = UserInfo("reader", ("system:authenticated",))


class RecordedScenario:
    """Runs a scenario and records it; `lines` are those of the recording."""

    def __init__(
        self,
        text: str,
        options: RecorderOptions | None = None,
        *,
        pod_namespaces: Sequence[str] | None = None,
        record_at: float = 0.0,
    ) -> None:
        self.scenario, self.lines = parse_scenario(text), list[str]()
        self.recorder: ClusterRecorder | None = None
        self._options, self._record_at = options or RecorderOptions(), record_at
        #: The namespaces whose pods a reader may read; None records with all rights.
        self._pod_namespaces = pod_namespaces
        try:
            virtual_time.run_virtual(self._run, max_seconds=self.scenario.until + 3600)
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _run(self) -> None:
        scenario = self.scenario
        clock = LoopClock(asyncio.get_running_loop(), EPOCH)
        random = SeededRandom(scenario.seed)
        store = MemoryStore(lambda: random.between(*LATENCY))
        config = ComponentConfig(without=("nodes",), gates=scenario.gates)
        plane = ControlPlane(store, clock, random, config=config)
        nodes = ScenarioNodes(plane.client("system:nodes"), clock, random)
        driver = ScenarioDriver(plane.client("user"), nodes)
        client = plane.client("observer")
        if self._pod_namespaces is not None:
            client = Client(InProcessTransport(plane.server.handle, READER))
        recorder = self.recorder = ClusterRecorder(
            client, clock, random, write=self._write, options=self._options
        )
        async with plane.running(), asyncio.TaskGroup() as group:
            tasks = [group.create_task(nodes.run())]
            await self._grant(plane.client("admin"))
            await nodes.add(scenario.nodes)
            await driver.create_priority_classes(scenario.moments)
            tasks.append(group.create_task(self._drive(driver, recorder, scenario)))
            await asyncio.sleep(self._record_at)
            tasks.append(group.create_task(recorder.run()))
            await tasks[1]
            for task in tasks:
                task.cancel()

    async def _drive(
        self, driver: ScenarioDriver, recorder: ClusterRecorder, scenario: Scenario
    ) -> None:
        loop = asyncio.get_running_loop()
        start = float(int(loop.time())) + 2.0
        await asyncio.sleep(start - loop.time())
        await driver.run(scenario.moments, start)
        await asyncio.sleep(start + scenario.until - loop.time())
        recorder.finish()

    async def _grant(self, admin: Client) -> None:
        if self._pod_namespaces is None:
            return
        subject = {"kind": "User", "name": READER.name, "apiGroup": "rbac.authorization.k8s.io"}
        await admin.create(CLUSTER_ROLE, {"metadata": {"name": "nodes"}, "rules": NODE_RULES})
        await admin.create(CLUSTER_ROLE_BINDING, _binding("nodes", "ClusterRole", subject))
        for space in self._pod_namespaces:
            role = {"metadata": {"name": "pods", "namespace": space}, "rules": POD_RULES}
            await admin.create(ROLE, role)
            binding = _binding("pods", "Role", subject)
            binding["metadata"]["namespace"] = space
            await admin.create(ROLE_BINDING, binding)

    def _write(self, line: bytes) -> None:
        self.lines.append(line.decode().removesuffix("\n"))


def _binding(name: str, kind: str, subject: Object) -> Object:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    return {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}


def read_workload(lines: Sequence[str], *, is_lenient: bool = False) -> RecordedWorkload:
    """Read the lines of a recording as the commands do."""
    workload = read_trace(TraceFile("test.jsonl", lines, is_lenient))
    assert isinstance(workload, RecordedWorkload)
    return workload


def replay_lines(lines: Sequence[str], profiles: Profiles = DEFAULT_PROFILES) -> ReplayEngine:
    """Replay the lines of a recording for the time that it took."""
    workload = read_workload(lines)
    recording = workload.history.recording
    setup = SimulationSetup(
        workload, workload.nodes, profiles, horizon=recording.end - recording.begin
    )
    engine = ReplayEngine(setup)
    engine.run()
    return engine


def check_replay(
    lines: Sequence[str],
    profiles: Profiles = DEFAULT_PROFILES,
    tolerance: float = 2.0,
    *,
    exact_nodes: bool = False,
) -> ReplayComparison:
    """Replay lines and compare the replay with them."""
    engine = replay_lines(lines, profiles)
    history = read_workload(lines).history
    return compare_replay(
        engine.jobs,
        history,
        schedulers=profiles.policies,
        tolerance=tolerance,
        exact_nodes=exact_nodes,
    )
