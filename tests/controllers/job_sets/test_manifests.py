"""Published JobSets run to their end on simulated nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.api.kinds import JOB_SET, POD_GROUP
from phalanx.api.wire import Object
from tests.builders import in_virtual_time
from tests.conformance.test_manifests import FOLDER
from tests.controllers.job_sets.job_set_harness import JobSetCluster, job_set_cluster

#: Seconds that pods run.
RUN_SECONDS = "20"


def load(path: Path) -> list[Object]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def has_job_set(path: Path) -> bool:
    return any(one.get("kind") == "JobSet" for one in load(path))


PATHS = sorted(path for path in FOLDER.rglob("*.yaml") if has_job_set(path))


def run_for_a_while(manifest: Object) -> Object:
    """Let the pods of a JobSet succeed after some seconds, and need little room and no images."""
    for role in manifest["spec"]["replicatedJobs"]:
        pods = role["template"]["spec"]["template"]
        annotations = pods.setdefault("metadata", {}).setdefault("annotations", {})
        annotations["phalanx.dev/run-seconds"] = RUN_SECONDS
        pods["spec"].pop("nodeSelector", None)
        for container in pods["spec"]["containers"]:
            container["resources"] = {"requests": {"cpu": "100m"}}
    manifest["metadata"].setdefault("namespace", "default")
    if "generateName" in manifest["metadata"]:
        manifest["metadata"]["name"] = f"{manifest['metadata'].pop('generateName')}1"
    manifest["metadata"]["namespace"] = "default"
    manifest["spec"]["suspend"] = False
    return manifest


async def ensure_group(cluster: JobSetCluster, manifest: Object) -> None:
    """Create the PodGroup that the pods of a manifest name, as its user would."""
    names: dict[str, Any] = {}
    for role in manifest["spec"]["replicatedJobs"]:
        pods = role["template"]["spec"]["template"]["spec"]
        if group := pods.get("schedulingGroup"):
            names[group["podGroupName"]] = {"basic": {}}
    for name, policy in names.items():
        await cluster.client.create(
            POD_GROUP,
            {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"schedulingPolicy": policy},
            },
        )


def test_there_are_manifests() -> None:
    assert len(PATHS) > 10


@pytest.mark.mostly_slow(quick_every=4)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
@in_virtual_time
async def test_published_job_set_completes(path: Path) -> None:
    (manifest,) = (one for one in load(path) if one["kind"] == "JobSet")
    racks = [{"cloud.provider.com/rack": f"r{at}", "rack": f"r{at}"} for at in range(16)]
    async with job_set_cluster(16, cpu=64, labels=racks) as cluster:
        run_for_a_while(manifest)
        for role in manifest["spec"]["replicatedJobs"]:
            annotations = role["template"].get("metadata", {}).get("annotations", {})
            for holder in (annotations, manifest["metadata"].get("annotations", {})):
                if "alpha.jobset.sigs.k8s.io/exclusive-topology" in holder:
                    holder["alpha.jobset.sigs.k8s.io/exclusive-topology"] = "rack"
        await ensure_group(cluster, manifest)
        await cluster.client.create(JOB_SET, manifest)
        await cluster.settle(400)
        name = manifest["metadata"]["name"]
        # One that its TTL deletes has ended too.
        if name in await cluster.names(JOB_SET):
            assert (await cluster.get(name)).status.terminal_state == "Completed"
