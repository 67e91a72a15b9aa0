from __future__ import annotations

import json
import tarfile
from pathlib import Path

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
