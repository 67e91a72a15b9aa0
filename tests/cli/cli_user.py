"""A user of a cluster: creates objects and runs `phalanx` commands."""

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
#: Attempts until a controller must have acted.
MAX_POLLS = 300


def gang_job(name: str, members: int, *, seconds: int = 0, **asks: str) -> Object:
    """A Job whose pods are a gang; they end after some seconds, or never."""
    spec = pod(name, asks=asks)["spec"] | {"restartPolicy": "Never"}
    meta = {"annotations": {"phalanx.dev/run-seconds": str(seconds)}} if seconds else {}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "parallelism": members, "completions": members,
            "template": {"metadata": meta, "spec": spec},
            "scheduling": {"schedulingPolicy": {"gang": {}}},
        },
    }  # fmt: skip


class CliUser:
    """A user with a namespace in a cluster."""

    def __init__(self, config: Path, namespace: str = "") -> None:
        self.config, self.namespace = config, namespace or f"user-{next(NUMBERS)}"
        self.create({"kind": "Namespace", "metadata": {"name": self.namespace}})

    def create(self, *objects: Object) -> None:
        async def make(client: Client) -> None:
            for obj in objects:
                if obj["kind"] != NAMESPACE.name and KIND_OF[obj["kind"]].namespaced:
                    obj["metadata"]["namespace"] = self.namespace
                await client.create(KIND_OF[obj["kind"]], obj)

        self.query(make)

    def query(self, query: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run a query with a client of the cluster."""

        async def run() -> T:
            client = kubeconfig.create_client(kubeconfig.load([self.config]))
            try:
                return await query(client)
            finally:
                await client.close()

        return asyncio.run(run())

    def run(self, command: str, *args: str) -> CompletedProcess[str]:
        """Run a command to its end."""
        return phalanx(command, "--kubeconfig", str(self.config), "-n", self.namespace, *args)

    def run_json(self, command: str, *args: str) -> Any:
        """Run a command with JSON output; return the parsed output."""
        return json.loads(self.run(command, "-o", "json", *args).stdout)

    def gangs(self) -> list[WorkloadRow]:
        """Return the rows of `phalanx queue`, without starting a process."""

        async def read(client: Client) -> list[WorkloadRow]:
            return list_workloads(await read_cluster(client))

        return self.query(read)

    def eventually(self, condition: Callable[[], T]) -> T:
        """Evaluate a condition until it is true; return its value."""
        for _ in range(MAX_POLLS):
            if found := condition():
                return found
        raise AssertionError("the condition never became true")
