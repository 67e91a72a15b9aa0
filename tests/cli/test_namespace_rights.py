"""Commands with a credential that has rights in one namespace only, on a foreign server."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.wire import Object
from tests.cli.commands import (
    WAIT_LIMIT,
    Kubectl,
    first_line,
    phalanx,
    start_component,
    start_up,
)
from tests.cli.test_foreign_servers import FORMS, NO_WORKLOAD_APIS, gang

NAMESPACE = "research"
#: What the ClusterRole `view` of Kubernetes grants in a namespace, and our custom resources.
RULES = [
    {
        "apiGroups": ["", "batch", "apps", "policy", "scheduling.phalanx.dev"],
        "resources": ["*"],
        "verbs": ["get", "list", "watch"],
    }
]


def role(kind: str, name: str, rules: list[Object]) -> list[Object]:
    """A role of this kind and its binding to the service account."""
    api = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": NAMESPACE}
    meta = {"name": name} | ({"namespace": NAMESPACE} if kind == "Role" else {})
    reference = {"apiGroup": api, "kind": kind, "name": name}
    return [
        {"apiVersion": f"{api}/v1", "kind": kind, "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{api}/v1", "kind": f"{kind}Binding", "metadata": meta,
            "roleRef": reference, "subjects": [subject],
        },
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reader:
    """A service account with rights in one namespace, and the administrator of its cluster."""

    config: Path
    admin: Kubectl

    def run(self, *args: str) -> CompletedProcess[str]:
        return phalanx(*args, "--kubeconfig", str(self.config))

    def run_json(self, *args: str) -> Object:
        found: Object = json.loads(self.run(*args, "-o", "json").stdout)
        return found


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A foreign server with a gang that runs and one that waits in each of two namespaces."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    folder = tmp_path_factory.mktemp("rights")
    config, own = folder / "kubeconfig", folder / "reader"
    with ExitStack() as stack:
        up = stack.enter_context(
            start_up(
                "--data", ":memory:", "--without", "scheduler,controllers", "--nodes", "2",
                "--shape", "cpu=4", "--feature-gates", NO_WORKLOAD_APIS,
                "--kubeconfig", str(config),
            )
        )  # fmt: skip
        assert first_line(up).startswith("ready")
        admin = Kubectl(config, NAMESPACE, folder)
        admin.apply(*workload_definitions())
        admin("create", "namespace", NAMESPACE)
        admin("create", "serviceaccount", "reader")
        Kubectl(config, "", folder).apply(*role("Role", "reader", RULES))
        content = yaml.safe_load(config.read_text())
        content["users"][0]["user"] = {"token": admin("create", "token", "reader").strip()}
        content["contexts"][0]["context"]["namespace"] = NAMESPACE
        own.touch(mode=0o600)
        own.write_text(yaml.safe_dump(content))
        scheduler = stack.enter_context(start_component("scheduler", config))
        assert first_line(scheduler).startswith("ready")
        form = FORMS["custom resources"]
        admin.apply(*gang(form, "runs", 2, "1"))
        admin("wait", "--for=condition=Ready", "pod", "--all", WAIT_LIMIT)
        Kubectl(config, "default", folder).apply(*gang(form, "hidden", 2, "2"))
        admin.apply(*gang(form, "waits", 3, "3"))
        condition = "--for=condition=PodGroupScheduled=false"
        admin("wait", condition, "podgroups.scheduling.phalanx.dev/waits", WAIT_LIMIT)
        yield Reader(own, admin)


NOTE = "only namespace research is shown: the credential may not read other namespaces or nodes"


@pytest.mark.slow
def test_queue_lists_the_gangs_of_the_namespace_without_positions(reader: Reader) -> None:
    done = reader.run("queue", "-A")
    assert done.returncode == 0, done.stderr
    assert f"Warning: {NOTE}\n" in done.stderr
    assert "hidden" not in done.stdout
    found = reader.run_json("queue")
    rows = {one["name"]: one for one in found["items"]}
    assert {name: one["state"] for name, one in rows.items()} == {
        "runs": "running", "waits": "waiting",
    }  # fmt: skip
    assert rows["waits"]["position"] is None
    assert rows["waits"]["reason"] == "Unschedulable"
    assert found["note"] == NOTE


@pytest.mark.slow
def test_why_shows_what_the_scheduler_wrote_and_no_fixes(reader: Reader) -> None:
    done = reader.run("why", "podgroup/waits")
    assert done.returncode == 0, done.stderr
    assert NOTE in done.stderr
    assert done.stdout.startswith(
        "PodGroup research/waits is waiting: too few members found a node: 0/2 nodes are available"
    )
    assert "minCount (3) cannot be satisfied" in done.stdout
    assert "fixes" not in done.stdout
    assert "is placed" in reader.run("why", "podgroup/runs").stdout
    assert "is placed" in reader.run("why", "pod/runs-0").stdout
    missing = reader.run("why", "podgroup/none")
    assert (missing.returncode, missing.stdout) == (1, "")


@pytest.mark.slow
def test_describe_says_that_other_namespaces_are_not_shown(reader: Reader) -> None:
    done = reader.run("describe", "podgroup/waits")
    assert done.returncode == 0, done.stderr
    assert f"Warning: {NOTE}\n" in done.stderr
    assert done.stdout.startswith("PodGroup research/waits: Waiting\n")
    assert reader.run_json("describe", "podgroup/waits")["note"] == NOTE


@pytest.mark.slow
def test_top_shows_the_gangs_and_check_the_gangs_and_pods(reader: Reader) -> None:
    top = reader.run("top", "--once")
    assert top.returncode == 0, top.stderr
    assert top.stdout.startswith(f"Warning: {NOTE}\n")
    assert "runs" in top.stdout
    assert "hidden" not in top.stdout
    check = reader.run("check")
    assert (check.returncode, check.stdout) == (
        0, "0 nodes, 2 gangs, 5 pods: all invariants hold\n",
    )  # fmt: skip
    assert f"{NOTE}; nodes are not checked" in check.stderr
    watch = reader.run("check", "--watch", "1")
    assert watch.returncode == 1
    assert "--watch needs the rights to watch pods" in watch.stderr


@pytest.mark.slow
def test_debug_bundle_has_the_objects_of_the_namespace(reader: Reader, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    done = reader.run("debug", str(bundle))
    assert done.returncode == 0, done.stderr
    assert "other namespaces than research" in done.stderr
    # Seventy kinds that may not be listed are one line.
    assert "what the credential may not read: " in done.stderr
    assert "forbidden" not in done.stderr
    with tarfile.open(bundle) as archive:
        (name,) = [one for one in archive.getnames() if one.endswith("objects/pods.json")]
        content = archive.extractfile(name)
        assert content is not None
        pods = [one["metadata"]["name"] for one in json.load(content)]
        groups = [one for one in archive.getnames() if "podgroups.scheduling.phalanx.dev" in one]
        listed = archive.extractfile("phalanx-debug/missing.txt")
        assert listed is not None
        missing = listed.read().decode()
    # The file names every kind.
    assert re.search(r" and \d+ more\n", done.stderr)
    assert " more" not in missing
    assert missing.count(",") > done.stderr.count(",")
    assert pods == ["runs-0", "runs-1", "waits-0", "waits-1", "waits-2"]
    assert len(groups) == 2


@pytest.mark.slow
def test_another_namespace_is_refused_by_the_words_of_the_server(reader: Reader) -> None:
    done = reader.run("queue", "-n", "default")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'cannot list resource "pods" in API group "" in the namespace "default"' in done.stderr
    assert done.stderr.endswith("name a namespace where you have it with -n\n")


@pytest.mark.slow
def test_what_if_needs_the_nodes_and_says_what_it_does_not_count(
    reader: Reader, tmp_path: Path
) -> None:
    file = tmp_path / "gang.yaml"
    file.write_text(yaml.safe_dump_all(gang(FORMS["custom resources"], "new", 2, "1")))
    refused = reader.run("what-if", "-f", str(file))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "a forecast needs the nodes, which this credential may not read" in refused.stderr
    described = reader.run("what-if", "-f", str(file), "--add-nodes", "2:cpu=1")
    assert described.returncode == 0, described.stderr
    assert "PodGroup research/new fits" in described.stdout
    assert f"{NOTE}: the forecast is for the added nodes alone" in described.stderr
    too_small = reader.run("what-if", "-f", str(file), "--add-nodes", "1:cpu=1")
    assert too_small.returncode == 4, too_small.stderr
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    nodes = role("ClusterRole", "node-reader", rules)
    anywhere = Kubectl(reader.admin.kubeconfig, "", reader.admin.home)
    anywhere.apply(*nodes)
    try:
        done = reader.run("what-if", "-f", str(file))
        assert done.returncode in (0, 3), done.stderr
        assert "PodGroup research/new" in done.stdout
        assert "may not read pods of other namespaces, which use nodes too" in done.stderr
    finally:
        anywhere("delete", "-f", "-", text=yaml.safe_dump_all(nodes))
