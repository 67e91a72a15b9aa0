"""Manifests of `-f`: strict as kubectl, in `phalanx run` and `phalanx what-if`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
import yaml

from phalanx.api.kinds import POD
from phalanx.api.wire import Object
from phalanx.api.workload_sources import convert_to_native
from phalanx.cli.manifests import load_manifests
from tests.cli.cli_user import gang_job
from tests.cli.commands import ROOT, phalanx
from tools.control_plane import ControlPlane


@pytest.fixture
def misspelt(tmp_path: Path) -> Path:
    """A Job whose parallelism is misspelt: without validation it would be a Job of one pod."""
    job = gang_job("x", 2)
    job["spec"]["paralelism"] = job["spec"].pop("parallelism")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def test_run_rejects_an_unknown_field(misspelt: Path) -> None:
    done = phalanx("run", "-f", str(misspelt), "--nodes", "1")
    message = f'Error: {misspelt}: Job "x": unknown field "spec.paralelism"\n'
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


def test_what_if_rejects_an_unknown_field(plane: ControlPlane, misspelt: Path) -> None:
    done = phalanx("what-if", "-f", str(misspelt), "--kubeconfig", str(plane.kubeconfig))
    message = f'Error: {misspelt}: Job "x": unknown field "spec.paralelism"\n'
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


def test_duplicate_key_is_an_error_with_its_line_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n"
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\n"
        "spec:\n  parallelism: 2\n  completions: 2\n  parallelism: 3\n"
    )
    with pytest.raises(click.ClickException, match='line 11: key "parallelism" already set in map'):
        load_manifests([str(file)], "default")


def test_every_unknown_field_is_named_with_its_path(tmp_path: Path) -> None:
    job = gang_job("x", 1)
    job["spec"]["template"]["spec"]["containers"][0]["cmd"] = ["sleep"]
    job["metadata"]["label"] = {}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    with pytest.raises(click.ClickException) as refused:
        load_manifests([str(file)], "default")
    assert 'unknown field "metadata.label"' in str(refused.value)
    assert 'unknown field "spec.template.spec.containers[0].cmd"' in str(refused.value)


def test_fields_with_alias_names_are_known_and_stay_as_written(tmp_path: Path) -> None:
    job = gang_job("x", 2)
    job["spec"]["scheduling"] = {"policy": {"gang": {}}}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    (manifest,) = load_manifests([str(file)], "default")
    assert manifest.content["spec"] == job["spec"]


#: Examples that are configurations or simulations, not objects.
CONFIGURATIONS = {
    ROOT / "examples" / "backfill-scheduler.yaml",
    *ROOT.glob("examples/simulate-*/*.yaml"),
}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(ROOT.glob("examples/**/*.yaml")) if path not in CONFIGURATIONS],
    ids=lambda path: path.stem,
)
def test_every_example_passes_strict_validation(path: Path) -> None:
    assert load_manifests([str(path)], "default")


def test_custom_resources_are_read_as_the_kinds_of_kubernetes(tmp_path: Path) -> None:
    label = {"scheduling.phalanx.dev/pod-group": "train"}
    pod_spec = {"containers": [{"name": "main", "image": "a"}]}
    objects: list[Object] = [
        {
            "apiVersion": "scheduling.phalanx.dev/v1",
            "kind": "PodGroup",
            "metadata": {"name": "train"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": label},
         "spec": pod_spec},
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "b"},
            "spec": {
                "selector": {"matchLabels": label},
                "template": {"metadata": {"labels": label}, "spec": pod_spec},
            },
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "c", "annotations": {"scheduling.phalanx.dev/policy": "gang"}},
            "spec": {"template": {"spec": pod_spec}},
        },
    ]  # fmt: skip
    (file := tmp_path / "all.yaml").write_text(yaml.safe_dump_all(objects))
    found = [convert_to_native(*one) for one in load_manifests([str(file)], "default")]
    group, pod, replicas, job = (content for _, content in found)
    assert [kind.group for kind, _ in found] == ["scheduling.k8s.io", "", "apps", "batch"]
    assert group["apiVersion"] == "scheduling.k8s.io/v1beta1"
    named = {"podGroupName": "train"}
    assert pod["spec"]["schedulingGroup"] == named
    assert replicas["spec"]["template"]["spec"]["schedulingGroup"] == named
    assert job["spec"]["scheduling"] == {"schedulingPolicy": {"gang": {}}}
    # A field of the user counts, and what the file says stays as it is.
    own = {**objects[1], "spec": {**pod_spec, "schedulingGroup": {"podGroupName": "own"}}}
    assert convert_to_native(POD, own) == (POD, own)


def test_directory_without_manifests_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("none")
    with pytest.raises(
        click.UsageError, match=r"contains no manifest \(\*\.yaml, \*\.yml, \*\.json\)"
    ):
        load_manifests([str(tmp_path)], "default")
