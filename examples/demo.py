"""The tutorial in one go: two trainings deadlock, and gangs cure it. `make demo` runs it.

What docs/tutorial.md does by hand, done by a program that needs nothing but Python, with the same
manifests and the same processes. It ends with exit code 0 only if all that it claims has happened.
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
#: Seconds that each step is given, and that a deadlock is looked at.
PATIENCE, LOOK = 60.0, 3.0
TEAMS, SIZE = ("red", "blue"), 4
COLOURS = {"red": 31, "blue": 34, "bold": 1, "good": 32}
SUM = "the sum is 30"


class Untrue(Exception):
    """Something that the demonstration claims has not happened."""


def main() -> int:
    """Show it; 0 if everything went as it is told."""
    try:
        with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as config:
            asyncio.run(demonstrate(config))
    except (Untrue, TimeoutError) as error:
        say(f"this did not go as it should: {str(error) or 'it took too long'}")
        return 1
    return 0


async def demonstrate(config: Path) -> None:
    """The deadlock, and the cure."""
    client = kubeconfig.create_client(kubeconfig.load([config]))
    try:
        await submit(client, "tutorial/allow.yaml")
        stuck = await deadlock(client)
        order = await cure(client)
        await explained(client, config)
    finally:
        await client.close()
    title("What you have seen")
    say(f"  pod by pod:  red {stuck['red']} of 4, blue {stuck['blue']} of 4, and nobody ever ends")
    say(f"  as gangs:    {order[0]} 4 of 4, then {order[1]} 4 of 4, and both have their sum")
    say("  too big:     green waits with none of 8, and says what would help")
    say(paint("good", "  done: both trainings hung, and gangs cured it\n"))
    say("By hand, step by step: docs/tutorial.md. Your own: .venv/bin/phalanx up --nodes 100")


async def deadlock(client: Client) -> Mapping[str, int]:
    """Both trainings placed by halves, and nothing moves; how many of each run."""
    title("1. Pod by pod: two trainings of four workers, room for six")
    async with watched(client) as board:
        await submit(client, "tutorial/plain.yaml")
        await board.until(lambda: sum(board.count(team, "Running") for team in TEAMS) == 6)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await board.until(lambda: board.ended > 0)
        board.settle()
        stuck = {team: board.count(team, "Running") for team in TEAMS}
        if stuck != {"red": 3, "blue": 3} or board.ended:
            raise Untrue(f"red and blue run with {stuck['red']} and {stuck['blue']} workers")
        say("  each waits for its fourth worker, and holds the room that it would need: a deadlock")
        await remove(client, "tutorial/plain.yaml")
        await board.until(lambda: not board.pods)
    return stuck


async def cure(client: Client) -> Sequence[str]:
    """The same pods as gangs: one training after the other; in which order."""
    title("2. As gangs: the same pods, but each training starts as a whole or not at all")
    async with watched(client) as board:
        await submit(client, "tutorial/gang.yaml")
        await board.until(lambda: board.ended == 2 * SIZE)
        board.settle()
        for team in TEAMS:
            if board.count(team, "Succeeded") != SIZE:
                raise Untrue(f"not all workers of {team} came to a good end")
            path = POD.url_path("default", f"{team}-0", "log")
            said = (await client.get_raw(path)).decode()
            if SUM not in said:
                raise Untrue(f"{team} has no sum")
            say(f"  {paint(team, team)}: {said.splitlines()[-1]}")
        return board.order()


async def explained(client: Client, config: Path) -> None:
    """A gang that does not fit, and why."""
    title("3. A gang that is too big: it waits, takes nothing, and says why")
    async with watched(client) as board:
        board.settle()
        await submit(client, "tutorial/too-big.yaml")
        await board.until(lambda: board.refused == 8)
        if any(pod.spec.node_name for pod in board.of("green")):
            raise Untrue("some of green have nodes")
    told = await asyncio.to_thread(why, "job/green", config)
    say(f"$ phalanx why job/green\n{told}")
    if "It would help to:" not in told:
        raise Untrue("nothing is said to help")


def why(what: str, config: Path) -> str:
    """What `phalanx why` says."""
    command = [sys.executable, "-m", "phalanx", "why", what, "--kubeconfig", str(config)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Board:
    """What is seen of the pods, drawn as it changes: · waits, ▶ runs, ■ has ended well."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self._changed, self._drawn, self._is_drawn = asyncio.Condition(), "", True
        #: Who got a node, in order.
        self._placed: dict[str, None] = {}

    def of(self, team: str) -> Sequence[Pod]:
        """The pods of a team."""
        return [pod for name, pod in self.pods.items() if name.startswith(f"{team}-")]

    def count(self, team: str, phase: str) -> int:
        """How many pods of a team are in a phase."""
        return sum(pod.status.phase == phase for pod in self.of(team))

    @property
    def ended(self) -> int:
        """How many have come to an end."""
        return sum(pod.is_terminal for pod in self.pods.values())

    @property
    def refused(self) -> int:
        """How many were told that there is no place for them."""
        said = (find_condition(pod.status.conditions, "PodScheduled") for pod in self.pods.values())
        return sum(one is not None and one.status == "False" for one in said)

    def order(self) -> Sequence[str]:
        """Which team was placed first, and which when that had all its nodes."""
        teams = [name.partition("-")[0] for name in self._placed]
        first, second = teams[0], teams[-1]
        if teams != [first] * SIZE + [second] * SIZE:
            raise Untrue(f"nodes were given in the order {', '.join(self._placed)}")
        return first, second

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(holds)

    async def follow(self, client: Client) -> None:
        """Look at all pods until cancelled."""
        listing = await client.list(POD, Pod)
        for pod in listing.items:
            await self._see(pod)
        async with contextlib.aclosing(client.watch(POD, Pod, since=listing.revision)) as events:
            async for event in events:
                await self._see(event.object, is_gone=event.type == "DELETED")

    async def _see(self, pod: Pod, *, is_gone: bool = False) -> None:
        async with self._changed:
            self.pods[pod.metadata.name] = pod
            if is_gone:
                del self.pods[pod.metadata.name]
            if pod.spec.node_name:
                self._placed.setdefault(pod.metadata.name)
            self._draw()
            self._changed.notify_all()

    def _draw(self) -> None:
        line = "   ".join(paint(team, f"{team} {self._bar(team)}") for team in TEAMS)
        if self._is_drawn and line != self._drawn and any(map(self.of, TEAMS)):
            self._drawn = line
            sys.stdout.write(f"\r  {line}\x1b[K" if is_terminal() else f"  {line}\n")
            sys.stdout.flush()

    def _bar(self, team: str) -> str:
        done, runs = self.count(team, "Succeeded"), self.count(team, "Running")
        return "■" * done + "▶" * runs + "·" * (SIZE - done - runs)

    def settle(self) -> None:
        """Draw no more: the last picture stays."""
        self._is_drawn = False
        if is_terminal():
            say("")


@contextlib.asynccontextmanager
async def watched(client: Client) -> AsyncIterator[Board]:
    """A board that is kept up to date while the context lasts."""
    board = Board()
    task = asyncio.create_task(board.follow(client))
    try:
        yield board
    finally:
        task.cancel()


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[Path]:
    """`phalanx up` with three nodes of two CPUs, for as long as the context lasts."""
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
            raise Untrue("the control plane did not start")
        say(ready)
        yield config
    finally:
        process.terminate()
        process.wait(10)


async def submit(client: Client, name: str) -> None:
    """Create the objects of a file, each trainings' port being any free one."""
    say(f"$ kubectl apply -f examples/{name}")
    for kind, obj in manifests(name):
        await client.create(kind, obj)


async def remove(client: Client, name: str) -> None:
    """Delete the objects of a file."""
    say(f"$ kubectl delete -f examples/{name}")
    for kind, obj in manifests(name):
        await client.delete(kind, Key("default", obj["metadata"]["name"]))


def manifests(name: str) -> Iterator[tuple[Kind, Object]]:
    """The objects of a file, each with its kind."""
    for obj in yaml.safe_load_all((HERE / name).read_text()):
        obj["metadata"]["namespace"] = "default"
        for container in obj.get("spec", {}).get("containers", ()):
            port = PORTS[obj["metadata"]["name"].partition("-")[0]]
            container["env"] = [
                {"name": "MASTER_PORT", "value": str(port)} if one["name"] == "MASTER_PORT" else one
                for one in container["env"]
            ]
        version = obj["apiVersion"]
        kind = next(k for k in KINDS if (k.api_version, k.name) == (version, obj["kind"]))
        yield kind, obj


def free_ports() -> Iterator[int]:
    """Ports that nobody has at the moment, and that the kernel gives to nobody meanwhile."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            yield port


PORTS = dict(zip(TEAMS, free_ports(), strict=False))


def is_terminal() -> bool:
    """Whether somebody looks on."""
    return sys.stdout.isatty()


def paint(colour: str, text: str) -> str:
    """A text in a colour, on a terminal."""
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if is_terminal() else text


def title(text: str) -> None:
    """The beginning of a part."""
    say("\n" + paint("bold", text))


def say(text: str) -> None:
    """Print at once, before whatever a child prints."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
