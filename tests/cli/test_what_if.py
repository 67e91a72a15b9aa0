from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from phalanx.api.wire import Object
from phalanx.cli.what_if import command
from tests.builders import gang, pod
from tests.cli.cli_user import CliUser, gang_job
from tools.control_plane import ControlPlane


class Asker(CliUser):
    """Somebody who asks what would be if."""

    folder: Path

    def what_if(self, *objects: Object, **options: str) -> tuple[int, str, str]:
        """Exit code, answer and complaint."""
        file = self.folder / "objects.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        words = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", v)]
        done = self.run("what-if", *(("-f", str(file)) if objects else ()), *words)
        return done.returncode, done.stdout, done.stderr

    def invoke(self, *words: str) -> Result:
        """The same in this process."""
        return CliRunner().invoke(
            command, ["--kubeconfig", str(self.config), "-n", self.namespace, *words]
        )


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """Two nodes of 8 CPU; the Job `held` takes half of each."""
    with ControlPlane("--data", ":memory:", "--nodes", "2", "--shape", "cpu=8") as plane:
        found = Asker(plane.kubeconfig)
        found.folder = tmp_path_factory.mktemp("files")
        found.create(gang_job("held", 2, cpu="5"))
        found.eventually(lambda: [line.placed for line in found.gangs()] == [2])
        yield found


def test_a_job_that_fits_is_told_where(user: Asker) -> None:
    code, told, errors = user.what_if(gang_job("new", 2, cpu="3"))
    assert (code, errors) == (0, "")
    head, where = told.splitlines()
    assert head.endswith("of Job/new fits: 2 of 2 members get a node now")
    assert where == "  on node-0 (1), node-1 (1)"


def test_a_job_that_must_wait_is_told_for_whom(user: Asker) -> None:
    code, told, _ = user.what_if(gang_job("new", 2, cpu="6"))
    assert code == 3
    assert told.splitlines()[-1] == "  it can start when these have ended: Job/held (2 pods)"


def test_a_gang_that_never_fits_is_told_why(user: Asker) -> None:
    code, told, _ = user.what_if(*gang("new", 2, namespace=user.namespace, cpu="9"))
    assert code == 4
    head, detail = told.splitlines()
    assert head.startswith(f"PodGroup {user.namespace}/new never fits: even if nothing else ran: ")
    assert detail == "  0/2 nodes are available: 2 Insufficient cpu."


def test_whom_an_important_one_would_drive_off(user: Asker) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "high"}, "value": 100}  # fmt: skip
    urgent = pod("urgent", cpu="6", spec={"priorityClassName": "high"})
    del urgent["metadata"]["namespace"]
    code, told, errors = user.what_if(high, urgent)
    assert (code, errors) == (3, "")
    assert "  it would drive off Job/held (" in told


def test_more_nodes_fewer_members_and_a_drain(user: Asker) -> None:
    assert user.what_if(gang_job("new", 2, cpu="6"), add_nodes="2")[0] == 0
    assert user.what_if(gang_job("new", 2, cpu="9"), add_nodes="2:cpu=9")[0] == 0
    assert user.what_if(gang_job("new", 4, cpu="3"), min_count="new=2")[0] == 0
    code, told, _ = user.what_if(drain="node-0")
    assert (code, "of Job/held never fits" in told) == (4, True)


def test_the_answer_as_json(user: Asker) -> None:
    code, told, _ = user.what_if(gang_job("new", 2, cpu="6"), output="json")
    [answer] = json.loads(told)["items"]
    assert (code, answer["verdict"], answer["kind"]) == (3, "waits", "PodGroup")
    assert [(one["kind"], one["pods"]) for one in answer["waitsFor"]] == [("PodGroup", 2)]


@pytest.mark.parametrize(
    ("obj", "sentence"),
    [
        (gang_job("held", 2, cpu="1"), "is in the cluster already"),
        ({"apiVersion": "v1", "kind": "Sock", "metadata": {"name": "a"}}, "no kind Sock in v1"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}, "spec.containers"),
        (
            {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "a"}},
            "nothing here makes the pods of JobSet",
        ),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}, "nothing in the"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    user: Asker, obj: Object, sentence: str
) -> None:
    file = user.folder / "objects.yaml"
    file.write_text(yaml.safe_dump(obj))
    done = user.invoke("-f", str(file))
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert sentence in done.stderr


@pytest.mark.parametrize(
    "words", [(), ("--min-count", "x"), ("--add-nodes", "many"), ("-f", "/nonexistent.yaml")]
)
def test_wrong_usage(user: Asker, words: tuple[str, ...]) -> None:
    assert user.invoke(*words).exit_code == 2
