"""Somebody at the command line with a cluster: makes objects, runs our commands."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeVar

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.kinds import NAMESPACE
from phalanx.api.wire import Object
from phalanx.cli.cluster_queries import read_cluster
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.scheduler.diagnosis.queue_order import WorkloadRow, list_workloads
from tests.builders import pod
from tests.cli.commands import phalanx

T = TypeVar("T")

NUMBERS = itertools.count()
KIND_OF = {kind.name: kind for kind in STORED_KINDS}
#: How often is looked for what a controller is to do.
MAX_POLLS = 300


def gang_job(name: str, members: int, *, seconds: int = 0, **asks: str) -> Object:
    """A Job whose pods are a gang; they end after so many seconds, or never."""
    spec = pod(name, asks=asks)["spec"] | {"restartPolicy": "Never"}
    notes = {"annotations": {"phalanx.dev/run-seconds": str(seconds)}} if seconds else {}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "parallelism": members, "completions": members,
            "template": {"metadata": notes, "spec": spec},
            "scheduling": {"schedulingPolicy": {"gang": {}}},
        },
    }  # fmt: skip


class CliUser:
    """Has a namespace of their own in a cluster."""

    def __init__(self, config: Path, namespace: str = "") -> None:
        self.config, self.namespace = config, namespace or f"person-{next(NUMBERS)}"
        self.create({"kind": "Namespace", "metadata": {"name": self.namespace}})

    def create(self, *objects: Object) -> None:
        async def make(client: Client) -> None:
            for obj in objects:
                if obj["kind"] != NAMESPACE.name and KIND_OF[obj["kind"]].namespaced:
                    obj["metadata"]["namespace"] = self.namespace
                await client.create(KIND_OF[obj["kind"]], obj)

        self.query(make)

    def query(self, question: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """What the cluster says itself."""

        async def asked() -> T:
            client = kubeconfig.create_client(kubeconfig.load([self.config]))
            try:
                return await question(client)
            finally:
                await client.close()

        return asyncio.run(asked())

    def run(self, command: str, *args: str) -> CompletedProcess[str]:
        """One of our commands, run to its end."""
        return phalanx(command, "--kubeconfig", str(self.config), "-n", self.namespace, *args)

    def run_json(self, command: str, *args: str) -> Any:
        """What it says as JSON."""
        return json.loads(self.run(command, "-o", "json", *args).stdout)

    def gangs(self) -> list[WorkloadRow]:
        """Who runs and waits, asked in this process, which is quick."""

        async def look(client: Client) -> list[WorkloadRow]:
            return list_workloads(await read_cluster(client))

        return self.query(look)

    def eventually(self, is_so: Callable[[], T]) -> T:
        """What a question answers once a controller has done its part."""
        for _ in range(MAX_POLLS):
            if found := is_so():
                return found
        raise AssertionError("it does not come about")
