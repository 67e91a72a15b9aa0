"""Runs the tutorial: two training jobs deadlock, and gang scheduling fixes it (`make demo`).

The program performs the steps of docs/tutorial.md with the same manifests and needs only Python.
Its exit code is 0 only if every step had the expected result.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from phalanx.api.core import Pod
from phalanx.api.kinds import KINDS, POD, Kind
from phalanx.api.meta import Key, find_condition
from phalanx.api.wire import Object
from phalanx.client import kubeconfig
from phalanx.client.client import Client

HERE = Path(__file__).parent
OPTIONS = "--nodes 3 --shape cpu=2 --run-processes --programs examples/06-barrier"
#: Seconds to wait for each step, and to observe the deadlock.
STEP_TIMEOUT, DEADLOCK_SECONDS = 600.0, 3.0
JOBS, WORKERS = ("red", "blue"), 4
COLOURS = {"red": 31, "blue": 34, "bold": 1, "good": 32}
EXPECTED_OUTPUT = "the sum is 30"


class UnexpectedResult(Exception):
    """A step did not have the expected result."""


def main() -> int:
    """Run the demo; return 0 if every step had the expected result."""
    try:
        with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as config:
            asyncio.run(demonstrate(config))
    except (UnexpectedResult, TimeoutError) as error:
        say(f"the demo failed: {str(error) or 'a step took too long'}")
        return 1
    return 0


async def demonstrate(config: Path) -> None:
    """Show the deadlock, the same pods as gangs, and a diagnosis."""
    client = kubeconfig.create_client(kubeconfig.load([config]))
    try:
        await submit(client, "tutorial/allow.yaml")
        running = await show_deadlock(client)
        order = await show_gangs(client)
        await show_diagnosis(client, config)
    finally:
        await client.close()
    title("Summary")
    say(f"  single pods: red {running['red']} of 4, blue {running['blue']} of 4, deadlocked")
    say(f"  gangs:       {order[0]} 4 of 4, then {order[1]} 4 of 4, and both finish")
    say("  too large:   green waits with 0 of 8 workers, and `phalanx why` shows verified fixes")
    say(
        paint("good", "  done: two training jobs deadlocked as single pods and finished as gangs\n")
    )
    say("Step by step: docs/tutorial.md. Your own cluster: .venv/bin/phalanx up --nodes 100")


async def show_deadlock(client: Client) -> Mapping[str, int]:
    """Run both jobs as single pods until they deadlock; return the running workers of each."""
    title("1. Single pods: two training jobs of four workers each, on a cluster that holds six")
    async with watch_pods(client) as board:
        await submit(client, "tutorial/plain.yaml")
        await board.wait_until(lambda: sum(board.count(job, "Running") for job in JOBS) == 6)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLOCK_SECONDS):
                await board.wait_until(lambda: board.terminated > 0)
        board.stop_drawing()
        running = {job: board.count(job, "Running") for job in JOBS}
        if running != {"red": 3, "blue": 3} or board.terminated:
            raise UnexpectedResult(
                f"red and blue run with {running['red']} and {running['blue']} workers"
            )
        say("  deadlock: each job waits for its fourth worker and occupies the CPU that it needs")
        await remove(client, "tutorial/plain.yaml")
        await board.wait_until(lambda: not board.pods)
    return running


async def show_gangs(client: Client) -> Sequence[str]:
    """Run the same pods as gangs, one job after the other; return the order of the jobs."""
    title("2. Gangs: the same pods, but each job starts with all of its workers or not at all")
    async with watch_pods(client) as board:
        await submit(client, "tutorial/gang.yaml")
        await board.wait_until(lambda: board.terminated == 2 * WORKERS)
        board.stop_drawing()
        for job in JOBS:
            if board.count(job, "Succeeded") != WORKERS:
                raise UnexpectedResult(f"not all workers of {job} succeeded")
            path = POD.url_path("default", f"{job}-0", "log")
            log = (await client.get_raw(path)).decode()
            if EXPECTED_OUTPUT not in log:
                raise UnexpectedResult(f"the log of {job}-0 does not contain: {EXPECTED_OUTPUT}")
            say(f"  {paint(job, job)}: {log.splitlines()[-1]}")
        return board.placement_order()


async def show_diagnosis(client: Client, config: Path) -> None:
    """Create a gang that does not fit, and show its diagnosis."""
    title("3. A gang that is too large: it waits, takes no resources, and can be diagnosed")
    async with watch_pods(client) as board:
        board.stop_drawing()
        await submit(client, "tutorial/too-big.yaml")
        await board.wait_until(lambda: board.unschedulable == 8)
        if any(pod.spec.node_name for pod in board.pods_of("green")):
            raise UnexpectedResult("workers of green have nodes")
    diagnosis = await asyncio.to_thread(run_why, "job/green", config)
    say(f"$ phalanx why job/green\n{diagnosis}")
    if "Possible fixes (verified):" not in diagnosis:
        raise UnexpectedResult("the diagnosis contains no verified fix")


def run_why(subject: str, config: Path) -> str:
    """Return the output of `phalanx why`."""
    command = [sys.executable, "-m", "phalanx", "why", subject, "--kubeconfig", str(config)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class PodBoard:
    """Watches pods and draws their states: · pending, ▶ running, ■ succeeded."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self._changed, self._last_line, self._is_drawing = asyncio.Condition(), "", True
        #: The names of bound pods in the order of their binding.
        self._bound: dict[str, None] = {}

    def pods_of(self, job: str) -> Sequence[Pod]:
        """Return the pods of a job."""
        return [pod for name, pod in self.pods.items() if name.startswith(f"{job}-")]

    def count(self, job: str, phase: str) -> int:
        """Return how many pods of a job are in a phase."""
        return sum(pod.status.phase == phase for pod in self.pods_of(job))

    @property
    def terminated(self) -> int:
        """The number of terminated pods."""
        return sum(pod.is_terminal for pod in self.pods.values())

    @property
    def unschedulable(self) -> int:
        """The number of pods with the condition PodScheduled=False."""
        found = (
            find_condition(pod.status.conditions, "PodScheduled") for pod in self.pods.values()
        )
        return sum(condition is not None and condition.status == "False" for condition in found)

    def placement_order(self) -> Sequence[str]:
        """Return the job that was bound first, and the one bound after all of its workers."""
        jobs = [name.partition("-")[0] for name in self._bound]
        first, second = jobs[0], jobs[-1]
        if jobs != [first] * WORKERS + [second] * WORKERS:
            raise UnexpectedResult(f"pods were bound in the order {', '.join(self._bound)}")
        return first, second

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(STEP_TIMEOUT), self._changed:
            await self._changed.wait_for(holds)

    async def follow(self, client: Client) -> None:
        """List and watch all pods until cancelled."""
        listing = await client.list(POD, Pod)
        for pod in listing.items:
            await self._update(pod)
        async with contextlib.aclosing(client.watch(POD, Pod, since=listing.revision)) as events:
            async for event in events:
                await self._update(event.object, is_gone=event.type == "DELETED")

    async def _update(self, pod: Pod, *, is_gone: bool = False) -> None:
        async with self._changed:
            self.pods[pod.metadata.name] = pod
            if is_gone:
                del self.pods[pod.metadata.name]
            if pod.spec.node_name:
                self._bound.setdefault(pod.metadata.name)
            self._draw()
            self._changed.notify_all()

    def _draw(self) -> None:
        line = "   ".join(paint(job, f"{job} {self._bar(job)}") for job in JOBS)
        if self._is_drawing and line != self._last_line and any(map(self.pods_of, JOBS)):
            self._last_line = line
            sys.stdout.write(f"\r  {line}\x1b[K" if is_terminal() else f"  {line}\n")
            sys.stdout.flush()

    def _bar(self, job: str) -> str:
        done, runs = self.count(job, "Succeeded"), self.count(job, "Running")
        return "■" * done + "▶" * runs + "·" * (WORKERS - done - runs)

    def stop_drawing(self) -> None:
        """Stop drawing and keep the last line."""
        self._is_drawing = False
        if is_terminal():
            say("")


@contextlib.asynccontextmanager
async def watch_pods(client: Client) -> AsyncIterator[PodBoard]:
    """Keep a board up to date while the context is open."""
    board = PodBoard()
    task = asyncio.create_task(board.follow(client))
    try:
        yield board
    finally:
        task.cancel()


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[Path]:
    """Run `phalanx up` with three nodes of two CPUs while the context is open."""
    config = folder / "kubeconfig"
    say(f"$ phalanx up {OPTIONS}")
    command = f"-m phalanx up {OPTIONS} --listen 127.0.0.1:0 --data :memory: --kubeconfig {config}"
    process = subprocess.Popen(
        [sys.executable, *command.split()],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=HERE.parent,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready.startswith("ready "):
            raise UnexpectedResult("the control plane did not start")
        say(ready)
        yield config
    finally:
        process.terminate()
        process.wait(10)


async def submit(client: Client, name: str) -> None:
    """Create the objects of a file; each job gets a free port."""
    say(f"$ kubectl apply -f examples/{name}")
    for kind, obj in manifests(name):
        await client.create(kind, obj)


async def remove(client: Client, name: str) -> None:
    """Delete the objects of a file."""
    say(f"$ kubectl delete -f examples/{name}")
    for kind, obj in manifests(name):
        await client.delete(kind, Key("default", obj["metadata"]["name"]))


def manifests(name: str) -> Iterator[tuple[Kind, Object]]:
    """Yield the objects of a file with their kinds."""
    for obj in yaml.safe_load_all((HERE / name).read_text()):
        obj["metadata"]["namespace"] = "default"
        for container in obj.get("spec", {}).get("containers", ()):
            port = PORTS[obj["metadata"]["name"].partition("-")[0]]
            container["env"] = [
                {"name": "MASTER_PORT", "value": str(port)}
                if variable["name"] == "MASTER_PORT"
                else variable
                for variable in container["env"]
            ]
        version = obj["apiVersion"]
        kind = next(k for k in KINDS if (k.api_version, k.name) == (version, obj["kind"]))
        yield kind, obj


def free_ports() -> Iterator[int]:
    """Yield free ports outside the range from which the kernel assigns ports."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            yield port


PORTS = dict(zip(JOBS, free_ports(), strict=False))


def is_terminal() -> bool:
    """Whether the output is a terminal."""
    return sys.stdout.isatty()


def paint(colour: str, text: str) -> str:
    """Colour a text if the output is a terminal."""
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if is_terminal() else text


def title(text: str) -> None:
    """Print the title of a part."""
    say("\n" + paint("bold", text))


def say(text: str) -> None:
    """Print and flush, so that the output of child processes comes later."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
