"""Replays the recorded behaviour of Kubernetes against Phalanx; nothing that passed may fail.

    python -m tools.reference                      everything, one line per file
    python -m tools.reference api/ scenarios/gang- files with one of these in their name, in detail
    python -m tools.reference --update             store what passes now
    python -m tools.reference --foreign volcano    scenarios on a foreign server of this form

Starts control planes, runs `replay.py` of the recordings against them, and compares the result with
`tests/reference_passing.txt`: if a case of this list fails, the exit code is 1. Cases that
`docs/deviations.md` quotes differ on purpose and count as neither. With `--foreign` scheduler and
controllers are processes beside a server of another form (`tools/foreign_forms.py`), and the
scenarios that can be said there are replayed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tools.control_plane import ControlPlane, NotReady, SplitControlPlane
from tools.foreign_forms import FORMS, THEMES, ForeignForm
from tools.foreign_plane import ForeignControlPlane, load_definitions

ROOT = Path(__file__).resolve().parent.parent
PASSING = ROOT / "tests" / "reference_passing.txt"
DEVIATIONS = ROOT / "docs" / "deviations.md"
#: Components that can run as processes of their own.
PARTS = ("scheduler", "controllers")
#: The recorded servers ran without the admission plugin ServiceAccount.
BARE = ("--data", ":memory:", "--nodes", "0", "--no-service-account-tokens", "--without")
#: Components that do not run while the recordings of a directory are replayed.
WITHOUT = {"api": ("scheduler", "controllers", "nodes"), "scenarios": ("nodes",)}
FOLDERS = ("api", "generated", "scenarios", "wanted")
#: The first word of replay.py's line for a case.
OK, DEVIATES, FAILED = "ok", "dev", "FAIL"


@dataclass(frozen=True, slots=True)
class Recording:
    """One file of recorded cases; `name` is its path within the recordings."""

    name: str
    path: Path
    cases: tuple[str, ...]

    @property
    def plane_type(self) -> str:
        """The kind of control plane that it needs."""
        return "api" if self.name.startswith(("api/", "generated/")) else "scenarios"


Queue = queue.SimpleQueue[Recording]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of one file: a verdict per case, and the explanation."""

    recording: Recording
    verdicts: dict[str, str]
    text: str

    def ids(self, verdict: str) -> set[str]:
        """Return the cases with a verdict, named as in the list of passing cases."""
        names = (case for case, found in self.verdicts.items() if found == verdict)
        return {f"{self.recording.name}: {case}" for case in names}

    def line(self) -> str:
        """One line of the report."""
        passed, total = len(self.ids(OK)), len(self.verdicts)
        mark = "   " if passed + len(self.ids(DEVIATES)) == total else " ! "
        return f"{mark}{passed:3}/{total:<3} {self.recording.name}"


class Replayer:
    """Runs `replay.py` on one recording after another, each against a running control plane."""

    def __init__(
        self,
        tool: Path,
        limit: float,
        *,
        messages: bool,
        details: bool,
        start_plane: Callable[[Recording], ControlPlane],
    ) -> None:
        self._tool, self._limit, self._messages, self._details = tool, limit, messages, details
        self._start_plane = start_plane

    def drain(self, recordings: Queue) -> list[Replayed]:
        """Replay what is left in the queue; replace a control plane that fails or hangs."""
        done: list[Replayed] = []
        plane: ControlPlane | None = None
        try:
            for recording in _drain_queue(recordings):
                if plane is not None and not plane.alive:
                    print(f"the control plane ended: {plane.stderr_tail()}")
                    plane.stop()
                    plane = None
                if plane is None:
                    plane = self._start_plane(recording)
                    plane.start()
                done.append(self.replay(recording, plane))
        finally:
            if plane is not None:
                plane.stop()
        return done

    def replay(self, recording: Recording, plane: ControlPlane) -> Replayed:
        """Replay one recording against one control plane, which is stopped after a timeout."""
        text, hung = self._run(recording, plane)
        if hung:
            plane.stop()
        replayed = Replayed(recording, parse_verdicts(recording, text), text)
        print(f"{replayed.line()}\n{text if self._details else ''}", end="", flush=True)
        return replayed

    def _run(self, recording: Recording, plane: ControlPlane) -> tuple[str, bool]:
        command = [sys.executable, str(self._tool), "--kubeconfig", str(plane.kubeconfig)]
        command += ["--deviations", str(DEVIATIONS)] + ["--messages"] * self._messages
        command.append(str(recording.path))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self._limit)
        except subprocess.TimeoutExpired as late:
            output = late.stdout or ""
            text = output.decode(errors="replace") if isinstance(output, bytes) else output
            return f"{text}     no end after {self._limit:.0f} s\n", True
        return done.stdout + done.stderr, False


def build_plane(recording: Recording, parts: Sequence[str]) -> ControlPlane:
    """Return the control plane of a recording, with these parts as processes of their own."""
    without = WITHOUT[recording.plane_type]
    beside = [part for part in parts if part not in without]
    return SplitControlPlane(beside, *BARE, ",".join((*without, *beside)))


def translate_recordings(
    recordings: Iterable[Recording], form: ForeignForm, folder: Path
) -> list[Recording]:
    """Write the scenarios that can be said in a form to a folder; return them."""
    found: list[Recording] = []
    for recording in recordings:
        if not recording.path.name.startswith(THEMES) or recording.plane_type != "scenarios":
            continue
        if case := form.translate(json.loads(recording.path.read_text())):
            path = folder / recording.path.name
            path.write_text(json.dumps(case))
            found.append(replace(recording, path=path))
    return found


def _drain_queue(recordings: Queue) -> Iterator[Recording]:
    while True:
        try:
            yield recordings.get_nowait()
        except queue.Empty:
            return


def parse_verdicts(recording: Recording, text: str) -> dict[str, str]:
    """Return the verdict of each case; a case that replay.py did not reach has failed."""
    verdicts = {}
    for block in re.split(r"\n(?! )", text):
        head, *details = block.splitlines() or [""]
        verdict, _, rest = head.partition(" ")
        file, _, case = rest.strip().partition(": ")
        if verdict in (OK, DEVIATES, FAILED) and file == recording.path.name:
            # Quoted where codes differ on purpose: a 4xx for a recorded 500.
            quoted = details and all(re.match(r" +step \d+ said: ", line) for line in details)
            verdicts[case] = OK if quoted else verdict
    return {case: verdicts.get(case, FAILED) for case in recording.cases}


def find_recordings(folder: Path, words: Sequence[str]) -> list[Recording]:
    """Return the recordings whose name contains one of the words, or all."""
    names = (f"{part}/{file.name}" for part in FOLDERS for file in (folder / part).glob("*.json"))
    found: list[Recording] = []
    for name in sorted(n for n in names if not words or any(word in n for word in words)):
        content = json.loads((folder / name).read_text())
        cases = content if isinstance(content, list) else [content]
        found.append(Recording(name, folder / name, tuple(case["name"] for case in cases)))
    return found


def replay_all(recordings: Iterable[Recording], replayer: Replayer, servers: int) -> list[Replayed]:
    """Replay concurrently, the API and the scenarios on several control planes each.

    Cases of the API wait rather than compute (watches, definitions): two control planes replay them
    in less than two minutes. The largest files are first, so that no worker is left with one.
    """
    queues: dict[str, Queue] = {}
    for recording in sorted(recordings, key=lambda one: -len(one.cases)):
        queues.setdefault(recording.plane_type, queue.SimpleQueue()).put(recording)
    workers_of = {"api": 2, "scenarios": servers}
    shares = [one for name, one in queues.items() for _ in range(workers_of[name])]
    with ThreadPoolExecutor(len(shares) or 1) as pool:
        workers = [pool.submit(replayer.drain, one) for one in shares]
        try:
            return [replayed for worker in workers for replayed in worker.result()]
        except BaseException:
            for one in queues.values():  # leave nothing for the other workers to start
                list(_drain_queue(one))
            raise


@dataclass(frozen=True, slots=True)
class Ratchet:
    """Compares what passed before with what passes now, among the replayed cases."""

    before: set[str]
    replayed: set[str]
    passing: set[str]
    meant: set[str]

    @property
    def lost(self) -> list[str]:
        """Return the cases that passed before and fail now, without a documented deviation."""
        return sorted((self.before & self.replayed) - self.passing - self.meant)

    def kept(self, force: bool) -> list[str]:
        """Return the new list: with new cases; without lost ones only if forced."""
        return sorted(self.passing | self.before - (self.replayed if force else self.meant))


def _ratchet(results: Iterable[Replayed]) -> Ratchet:
    before = set(PASSING.read_text().splitlines()) if PASSING.exists() else set()
    by_verdict = {
        verdict: {case for result in results for case in result.ids(verdict)}
        for verdict in (OK, DEVIATES, FAILED)
    }
    return Ratchet(before, set().union(*by_verdict.values()), by_verdict[OK], by_verdict[DEVIATES])


def _options() -> argparse.Namespace:
    beside = Path(os.environ.get("REFERENCE", ROOT.parent / "shared" / "reference"))
    parser = argparse.ArgumentParser(prog="tools.reference", description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="only files whose name holds one of these")
    parser.add_argument("--reference", type=Path, default=beside, help="the recordings' folder")
    parser.add_argument("--servers", type=int, default=3, help="control planes for scenarios")
    parser.add_argument("--limit", type=float, default=180, help="seconds for one file")
    parser.add_argument("--messages", action="store_true", help="compare texts of messages too")
    parser.add_argument("--scheduler-process", action="store_true",
                        help="with the scheduler in a process of its own")  # fmt: skip
    parser.add_argument("--controllers-process", action="store_true",
                        help="with the controllers in a process of their own")  # fmt: skip
    parser.add_argument("--foreign", choices=sorted(FORMS),
                        help="scenarios on a foreign server of this form")  # fmt: skip
    parser.add_argument("--manifests", type=Path, default=beside.parent / "manifests",
                        help="with --foreign: definitions of other projects")  # fmt: skip
    parser.add_argument("--update", action="store_true", help="add what passes now to the list")
    parser.add_argument("--force", action="store_true", help="with --update: drop what fails now")
    return parser.parse_args()


def main() -> int:
    """Replay, report, and compare with the list of passing cases."""
    options = _options()
    tool = options.reference / "replay.py"
    if not tool.exists():
        print(
            f"no recordings in {options.reference}: name their folder with REFERENCE or --reference"
        )
        return 2
    recordings = find_recordings(options.reference, options.names)
    parts = [part for part in PARTS if getattr(options, f"{part}_process")]
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        try:
            start_plane: Callable[[Recording], ControlPlane] = partial(build_plane, parts=parts)
            if options.foreign:
                form = FORMS[options.foreign]
                definitions = load_definitions(form, options.manifests)
                recordings = translate_recordings(recordings, form, Path(folder))
                start_plane = lambda recording: ForeignControlPlane(form, definitions, *BARE)  # noqa: E731
            replayer = Replayer(
                tool, options.limit, messages=options.messages, details=bool(options.names),
                start_plane=start_plane,
            )  # fmt: skip
            ratchet = _ratchet(replay_all(recordings, replayer, options.servers))
        except (FileNotFoundError, NotReady) as error:
            print(error)
            return 2
    print(f"{len(ratchet.passing)} of {len(ratchet.replayed)} passed, ", end="")
    print(
        f"{len(ratchet.meant)} differ on purpose, {len(ratchet.passing - ratchet.before)} are new"
    )
    for case in ratchet.lost:
        print(f"LOST {case}")
    if options.update:
        kept = ratchet.kept(options.force)
        PASSING.write_text("".join(f"{case}\n" for case in kept))
        print(f"{PASSING.relative_to(ROOT)} holds {len(kept)} cases")
    return 1 if ratchet.lost and not (options.update and options.force) else 0


if __name__ == "__main__":
    sys.exit(main())
