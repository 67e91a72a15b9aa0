"""From nothing to a running gang: a control plane, a gang that fits, one that does not, and why.

Starts `phalanx up` with simulated nodes, submits `gangs.yaml` through the client library, waits
until both gangs are decided, and asks `phalanx why`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path

import yaml

from phalanx.api.core import Pod
from phalanx.api.kinds import KINDS, POD, POD_GROUP
from phalanx.api.meta import condition
from phalanx.api.scheduling import INITIALLY_SCHEDULED, PodGroup
from phalanx.api.wire import Object
from phalanx.client import kubeconfig
from phalanx.client.client import Client

HERE = Path(__file__).parent
COMMAND = (sys.executable, "-m", "phalanx")
PATIENCE = 30.0


def main() -> int:
    """Show it; 0 if everything went as it should."""
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as config:
        fits = asyncio.run(submit(config))
        say("$ phalanx why podgroup/too-big")
        subprocess.run(
            [*COMMAND, "why", "podgroup/too-big", "--kubeconfig", str(config)], check=True
        )
    say("\nNow start your own: .venv/bin/phalanx up --nodes 100, and use kubectl as always.")
    return 0 if fits else 1


@contextmanager
def control_plane(folder: Path) -> Iterator[Path]:
    """`phalanx up` with two simulated nodes, for as long as the context lasts."""
    config = folder / "kubeconfig"
    options = (
        f"--listen 127.0.0.1:0 --data {folder / 'data'} --kubeconfig {config} --nodes 2 "
        "--shape cpu=8,memory=32Gi,nvidia.com/gpu=4"
    )
    say("$ phalanx up --nodes 2 --shape cpu=8,memory=32Gi,nvidia.com/gpu=4")
    process = subprocess.Popen(
        [*COMMAND, "up", *options.split()], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready.startswith("ready "):
            raise SystemExit("the control plane did not start")
        say(ready)
        yield config
    finally:
        process.terminate()
        process.wait(10)


async def submit(config: Path) -> bool:
    """Create both gangs, wait until both are decided, show them."""
    client = kubeconfig.connect(kubeconfig.read([config]))
    try:
        say("$ kubectl apply -f examples/gangs.yaml")
        for obj in manifests():
            kind = next(k for k in KINDS if k.name == obj["kind"])
            obj["metadata"]["namespace"] = "default"
            await client.create(kind, obj)
        async with asyncio.timeout(PATIENCE):
            groups = await decided(client)
        pods = (await client.list(POD, Pod)).items
        show(groups, pods)
        placed = [pod for pod in pods if pod.spec.node_name]
        return len(placed) == 6 and all(pod.metadata.name.startswith("train-") for pod in placed)
    finally:
        await client.close()


def manifests() -> list[Object]:
    """The objects of gangs.yaml."""
    return list(yaml.safe_load_all((HERE / "gangs.yaml").read_text()))


async def decided(client: Client) -> list[PodGroup]:
    """The groups, as soon as each of them was tried."""
    listing = await client.list(POD_GROUP, PodGroup)
    groups = {group.metadata.name: group for group in listing.items}
    async with aclosing(client.watch(POD_GROUP, PodGroup, since=listing.revision)) as events:
        while not all(condition(g.status.conditions, INITIALLY_SCHEDULED) for g in groups.values()):
            event = await anext(events)
            groups[event.object.metadata.name] = event.object
    return list(groups.values())


def show(groups: Sequence[PodGroup], pods: Sequence[Pod]) -> None:
    """What `kubectl get` would show, in short."""
    for group in groups:
        said = condition(group.status.conditions, INITIALLY_SCHEDULED)
        assert said is not None
        say(f"\npodgroup/{group.metadata.name}: {said.reason} {said.message}".rstrip())
        for pod in pods:
            if pod.group == group.metadata.key:
                say(f"  {pod.metadata.name:10} {pod.spec.node_name or 'no node'}")
    say("")


def say(text: str) -> None:
    """Print at once, before whatever a child prints."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
