"""ClusterRecorder: what it writes, what it leaves out, and what it does without rights."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from phalanx.api.kinds import NODE
from phalanx.clock import LoopClock
from phalanx.control_plane import ControlPlane
from phalanx.randomness import SeededRandom
from phalanx.sim.recording.anonymizer import Anonymizer
from phalanx.sim.recording.recorder import (
    ClusterRecorder,
    RecorderOptions,
    RecordingRefused,
    describe_scope,
)
from phalanx.sim.simulation import EPOCH
from phalanx.sim.virtual_time import run_virtual
from phalanx.store.memory import MemoryStore
from tests.sim.recording.recorded_cluster import (
    RecordedScenario,
    check_replay,
    read_workload,
)

SECRET = "s3cr3t-value"
TEXT = f"""
nodes: {{count: 2, each: {{cpu: 4}}, labels: {{rack: north}}}}
at 0:
  - make:
      apiVersion: v1
      kind: Pod
      metadata:
        name: app
        namespace: default
        labels: {{app: web}}
        annotations: {{note: {SECRET}, phalanx.dev/expected-run-time: 60s}}
      spec:
        containers:
        - name: main
          image: registry.example.com/team/app:1
          command: [run, --password={SECRET}]
          env: [{{name: TOKEN, value: {SECRET}}}]
          resources: {{requests: {{cpu: "1"}}}}
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms:
              - matchExpressions: [{{key: rack, operator: In, values: [north]}}]
  - {{make: {{apiVersion: v1, kind: Secret, metadata: {{name: key, namespace: default}},
     stringData: {{key: {SECRET}}}}}}}
  - {{gang: train, pods: 2, each: {{cpu: 2}}, run: 10s, topology: rack}}
at 5: {{cordon: node-1}}
at 20: {{remove node: node-1}}
until: 30
"""


@pytest.fixture(scope="module")
def recorded() -> RecordedScenario:
    """A recording of a pod, a gang and two nodes, with secrets around."""
    return RecordedScenario(TEXT)


def select(lines: list[str], word: str) -> list[dict[str, Any]]:
    return [one for one in map(json.loads, lines) if one["is"] == word]


def test_header_comes_first_and_the_end_last(recorded: RecordedScenario) -> None:
    lines = recorded.lines
    assert json.loads(lines[0])["is"] == "recording"
    assert json.loads(lines[0])["format"] == 1
    assert json.loads(lines[-1])["is"] == "ended"
    times = [json.loads(line)["at"] for line in lines]
    assert times == sorted(times)


def test_joins_cordons_and_removals_of_nodes_are_recorded(recorded: RecordedScenario) -> None:
    nodes = [one for one in select(recorded.lines, "node") if one["name"] == "node-1"]
    *known, last = [one["node"] for one in nodes]
    assert any(node.get("spec", {}).get("unschedulable") for node in known)
    assert last is None


def test_no_secret_reaches_the_recording(recorded: RecordedScenario) -> None:
    text = "\n".join(recorded.lines)
    assert SECRET not in text
    assert "expected-run-time" in text


def test_unchanged_objects_are_written_once(recorded: RecordedScenario) -> None:
    bodies = [
        json.dumps({**one, "at": 0}, sort_keys=True)
        for one in map(json.loads, recorded.lines)
        if one["is"] == "pod"
    ]
    assert len(bodies) == len(set(bodies))


def test_anonymized_recording_names_nothing_and_is_replayed_alike() -> None:
    options = RecorderOptions(anonymizer=Anonymizer(b"key"))
    recording = RecordedScenario(TEXT, options)
    text = "\n".join(recording.lines)
    for word in (
        "train-",
        '"train"',
        '"app"',
        "web",
        "rack",
        "north",
        "registry",
        "default/",
        '"default"',
    ):
        assert word not in text, word
    assert "kubernetes.io/hostname" in text
    assert check_replay(recording.lines).differences == ()
    assert {node.metadata.name for node in read_workload(recording.lines).nodes} == {
        "node-00000",
        "node-00001",
    }


def test_numbers_as_label_values_are_replaced_in_their_order() -> None:
    anonymizer = Anonymizer(b"key")
    numbers = [0, 1, 2, 7, 8, 4711, 4712, 90210, (1 << 30) - 1]

    def replace(key: str, text: str) -> str:
        line = {"is": "node", "name": "a", "node": {"metadata": {"labels": {key: text}}}}
        found = anonymizer.anonymize(line)
        assert found is not None
        return str(next(iter(found["node"]["metadata"]["labels"].values())))

    replaced = [int(replace("example.com/customer", str(number))) for number in numbers]
    assert replaced == sorted(set(replaced))
    assert max(replaced) < 1 << 63
    assert not set(replaced) & set(numbers[1:])
    assert replaced[5] != int(replace("example.com/employee", "4711"))
    # Too long for a number that is compared, or no number as Kubernetes writes it.
    assert replace("example.com/customer", "123456789012").startswith("x")
    assert replace("example.com/customer", "0042").startswith("x")
    assert replace("batch.kubernetes.io/job-completion-index", "3") == "3"
    assert replace("example.com/customer", "true") == "true"


def test_numbers_are_replaced_alike_in_labels_and_in_constraints() -> None:
    anonymizer, key = Anonymizer(b"key"), "example.com/generation"
    labels = {"metadata": {"labels": {key: "7"}}}
    term = {"matchExpressions": [{"key": key, "operator": "Gt", "values": ["6"]}]}
    spec = {"nodeSelector": {key: "7"}, "affinity": {"nodeSelectorTerms": [term]}}
    spec["tolerations"] = [{"key": key, "value": "7"}]
    node = anonymizer.anonymize({"is": "node", "name": "a", "node": labels})
    pod = anonymizer.anonymize({"is": "pod", "pod": {"spec": spec}})
    assert node is not None
    assert pod is not None
    (value,) = node["node"]["metadata"]["labels"].values()
    replaced = pod["pod"]["spec"]
    assert list(replaced["nodeSelector"].values()) == [value]
    assert replaced["tolerations"][0]["value"] == value
    (requirement,) = replaced["affinity"]["nodeSelectorTerms"][0]["matchExpressions"]
    assert int(requirement["values"][0]) < int(value)


def test_domains_of_other_projects_are_replaced_in_words_of_the_api() -> None:
    owners = [{"apiVersion": "team.example.com/v1", "kind": "Train", "name": "a", "uid": "u"}]
    conditions = [{"type": "team.example.com/Licensed", "status": "True", "reason": "Ok"}]
    metadata = {"name": "p", "ownerReferences": owners, "uid": "u"}
    pod = {"metadata": metadata, "status": {"conditions": conditions, "phase": "Running"}}
    found = Anonymizer(b"key").anonymize({"is": "pod", "at": 1.0, "pod": pod})
    assert found is not None
    assert "example.com" not in json.dumps(found)
    assert found["pod"]["metadata"]["ownerReferences"][0]["kind"] == "Train"
    native = {"ownerReferences": [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}]}
    assert Anonymizer(b"key").anonymize({"is": "pod", "metadata": native}) == {
        "is": "pod",
        "metadata": native,
    }


def test_user_with_rights_in_one_namespace_records_that_one() -> None:
    options = RecorderOptions(fallback_namespace="default")
    recording = RecordedScenario(TEXT, options, pod_namespaces=["default"])
    assert recording.recorder is not None
    sentences = list(describe_scope(recording.recorder))
    assert sentences[0] == "only namespace default is recorded"
    assert sentences[1].startswith("not recorded (forbidden): namespaces, services")
    assert " nodes," not in sentences[1]
    workload = read_workload(recording.lines)
    assert len(workload.jobs) == 2
    assert "only namespace default was recorded" in workload.notes


def test_user_without_rights_to_read_pods_is_refused() -> None:
    options = RecorderOptions(namespace="default")
    with pytest.raises(RecordingRefused, match="pods in namespace default cannot be listed"):
        RecordedScenario(TEXT, options, pod_namespaces=[])


def test_full_disk_ends_the_recording_with_its_error() -> None:
    class FullDisk(RecordedScenario):
        def _write(self, line: bytes) -> None:
            if len(self.lines) > 8:
                raise OSError(28, "No space left on device")
            super()._write(line)

    with pytest.raises(OSError, match="No space left"):
        FullDisk(TEXT)


def test_changes_that_arrive_together_have_one_time() -> None:
    class TickingClock:
        """A clock that no two calls read at the same time."""

        def __init__(self) -> None:
            self._ticks = 0

        def now(self) -> float:
            self._ticks += 1
            return 1_800_000_000.0 + self._ticks * 1e-4

    lines: list[Any] = []

    async def record() -> None:
        loop = asyncio.get_running_loop()
        plane = ControlPlane(MemoryStore(), LoopClock(loop, EPOCH), SeededRandom(1))
        recorder = ClusterRecorder(
            plane.client("observer"),
            TickingClock(),
            SeededRandom(1),
            write=lambda line: lines.append(json.loads(line)),
            options=RecorderOptions(),
        )
        async with plane.running():
            task = asyncio.create_task(recorder.run())
            await recorder.synced.wait()
            await asyncio.sleep(1)
            user = plane.client("user")
            names = ("a", "b", "c")
            await asyncio.gather(*(user.create(NODE, {"metadata": {"name": n}}) for n in names))
            await asyncio.sleep(1)
            task.cancel()

    run_virtual(record)
    nodes = [one for one in lines if one["is"] == "node"]
    assert [one["name"] for one in nodes][:3] == ["a", "b", "c"]
    assert len({one["at"] for one in nodes[:3]}) == 1
