from __future__ import annotations

import itertools
import json
import tarfile
from pathlib import Path
from typing import Any

from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION
from phalanx.api.wire import Object
from phalanx.cli.debug import redact
from phalanx.client.client import Client
from tests.builders import pod
from tests.cli.cli_user import CliUser
from tests.cli.commands import phalanx
from tools.control_plane import ControlPlane


def contents(file: Path) -> dict[str, str]:
    found = {}
    with tarfile.open(file) as archive:
        for one in archive.getmembers():
            part = archive.extractfile(one)
            assert part is not None
            found[one.name.removeprefix("phalanx-debug/")] = part.read().decode()
    return found


def test_bundle_contains_objects_and_logs_but_no_secret(
    plane: ControlPlane, tmp_path: Path
) -> None:
    ann = CliUser(plane.kubeconfig)
    made = pod("p", cpu="1")
    made["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    made["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": '{"value":"hunter2"}'
    }
    meta = {"name": "s"}
    ann.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"k": "hunter2"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"k": "hunter2"}},
        made,
    )
    log = tmp_path / "decisions.jsonl"
    log.write_text("a decision\n")
    file = tmp_path / "bundle.tar.gz"
    options = ("--kubeconfig", str(plane.kubeconfig), "--decision-log", str(log))
    done = phalanx("debug", str(file), *options, env={"HOME": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wrote {file}\n", "")
    found = contents(file)
    assert "hunter2" not in "".join(found.values())
    pods = json.loads(found["objects/pods.json"])
    (mine,) = [one for one in pods if one["metadata"]["namespace"] == ann.namespace]
    assert mine["spec"]["containers"][0]["env"] == [{"name": "PASSWORD", "value": "(left out)"}]
    assert "secrets" not in "".join(found)
    assert found["decisions/decisions.jsonl"] == "a decision\n"
    assert {"versions.txt", "version.json", "metrics.txt", "objects/events.json"} <= set(found)


def test_bundle_without_a_cluster_says_so(tmp_path: Path) -> None:
    state = tmp_path / ".local" / "state" / "phalanx"
    state.mkdir(parents=True)
    (state / "up.log").write_text("it ended\n")
    file = tmp_path / "bundle.tar.gz"
    env = {"HOME": str(tmp_path), "KUBECONFIG": "", "XDG_STATE_HOME": ""}
    done = phalanx("debug", str(file), env=env)
    assert done.returncode == 0
    assert done.stderr.startswith("without the cluster: there is no kubeconfig at ")
    found = contents(file)
    assert found["logs/up.log"] == "it ended\n"
    assert set(found) == {"logs/up.log", "missing.txt", "versions.txt"}


def test_bundle_does_not_overwrite_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    file.write_text("mine")
    done = phalanx("debug", str(file), "--kubeconfig", str(tmp_path / "none"))
    assert (done.returncode, file.read_text()) == (1, "mine")
    assert done.stderr.endswith(f"Error: cannot write {file}: File exists\n")


class Secrets:
    """Makes secrets to plant, and remembers them."""

    def __init__(self) -> None:
        self._numbers, self.made = itertools.count(), list[str]()

    def __call__(self) -> str:
        self.made.append(f"hunter-{next(self._numbers):03}")
        return self.made[-1]

    def pod_template(self) -> Object:
        """A pod template with a secret in every place that may hold one."""
        headers = {"httpHeaders": [{"name": "Authorization", "value": f"Bearer {self()}"}]}
        probe = {"httpGet": {"path": f"/live?token={self()}", "port": 80, **headers}}
        hook = {"exec": {"command": ["sh", "-c", f"login {self()}"]}}
        container = {
            "name": "main",
            "image": "registry.example/main:1",
            "command": ["sh", "-c", f"--password={self()}"],
            "args": [self(), self()],
            "env": [
                {"name": "PASSWORD", "value": self()},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ],
            "livenessProbe": probe,
            "readinessProbe": {"exec": {"command": ["check", self()]}},
            "startupProbe": {"httpGet": {"port": 80, **headers}},
            "lifecycle": {"postStart": hook, "preStop": {"httpGet": {"port": 80, **headers}}},
        }
        variable = {"name": "TOKEN", "value": self()}
        first: Object = {"name": "first", "image": "i", "command": [self()], "args": [self()]}
        first["env"] = [variable]
        return {
            "metadata": {"annotations": self.annotations()},
            "spec": {
                "restartPolicy": "Never",
                "initContainers": [first],
                "containers": [container],
            },
        }

    def annotations(self) -> Object:
        last = "kubectl.kubernetes.io/last-applied-configuration"
        texts = {name: self() for name in ("example.com/applied", "my-k8s.io/applied")}
        return {last: json.dumps({"value": self()}), **texts}


def test_no_planted_secret_is_in_a_bundle(plane: ControlPlane, tmp_path: Path) -> None:
    ann, secret = CliUser(plane.kubeconfig), Secrets()

    def made(kind: str, version: str, **fields: Any) -> Object:
        meta = {"name": "planted", "annotations": secret.annotations()}
        return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}

    job = {"suspend": True, "template": secret.pod_template()}
    cron = {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": job}}
    template = secret.pod_template()
    ann.create(
        made("Secret", "v1", stringData={"k": secret()}),
        made("ConfigMap", "v1", data={"k": secret()}, binaryData={"b": "aHVudGVyLTk5OQ=="}),
        made("Job", "batch/v1", spec=job),
        made("CronJob", "batch/v1", spec=cron),
        made("Pod", "v1", spec=template["spec"] | {"schedulingGates": [{"name": "a.b/c"}]}),
    )
    group = f"{ann.namespace}.example.com"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "metadata": {"name": f"trains.{group}"},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"kind": "Train", "plural": "trains"},
            "versions": [{"name": "v1", "served": True, "storage": True,
                          "schema": {"openAPIV3Schema": schema}}],
        },
    }  # fmt: skip

    async def create_custom(client: Client) -> None:
        await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
        train = made("Train", f"{group}/v1", spec={"replicas": [{"template": job}]})
        await client.post(f"/apis/{group}/v1/namespaces/{ann.namespace}/trains", train)

    ann.query(create_custom)
    file = tmp_path / "bundle.tar.gz"
    options = ("--kubeconfig", str(plane.kubeconfig), "--data", str(tmp_path))
    done = phalanx("debug", str(file), *options, env={"HOME": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    found = "".join(contents(file).values())
    assert [one for one in [*secret.made, "aHVudGVyLTk5OQ=="] if one in found] == []
    assert found.count('"planted"') >= 4
    token = json.dumps(plane.kubeconfig.read_text()).partition("token: ")[2][:20]
    assert token
    assert token not in found


def test_redaction_reaches_every_depth_and_keeps_the_rest() -> None:
    secret = Secrets()
    template = {"spec": {"template": secret.pod_template()}}
    job_set = {"spec": {"replicatedJobs": [{"template": template}]}}
    items = [
        {"kind": "JobSet", **job_set},
        {"kind": "ConfigMap", "data": {"k": secret()}},
        {"kind": "Secret", "data": {"k": secret()}, "stringData": {"k": secret()}},
        {"kind": "Job", "spec": {"template": secret.pod_template()}},
    ]
    text = json.dumps(redact({"kind": "List", "items": items}))
    assert [one for one in secret.made if one in text] == []
    kept = {
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"phalanx.dev/stages": "{run: 5}"}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]},
        "status": {"conditions": [{"reason": "Unschedulable", "message": "0/3 nodes"}]},
    }  # fmt: skip
    assert redact(kept) == kept
    schema = {"properties": {"env": {"type": "array"}, "command": {"type": "array"}}}
    assert redact(schema) == schema


def test_decision_log_of_an_older_version_is_redacted(tmp_path: Path) -> None:
    log, file, secret = tmp_path / "decisions.jsonl", tmp_path / "bundle.tar.gz", Secrets()
    record = {"is": "pod", "pod": {"metadata": {"name": "p", "annotations": secret.annotations()}}}
    log.write_text(f"{json.dumps(record)}\nplain\n{json.dumps(secret.annotations())[:-9]}\n")
    phalanx("debug", str(file), "--kubeconfig", str(tmp_path / "none"), "--decision-log", str(log))
    text = contents(file)["decisions/decisions.jsonl"]
    assert [one for one in secret.made if one in text] == []
    assert text.splitlines()[1:] == ["plain", "(left out)"]
