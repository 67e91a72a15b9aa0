"""Plant bugs, one at a time, and see whether the fault programme or the suite finds them.

    python -m tools.mutants                    all of them, in a table
    python -m tools.mutants --only quorum      those whose name, or file, says so
    python -m tools.mutants --suite            by the tests alone that are named beside them

A mutant is a small change of a copy of the source; the tree itself is never touched. Each must be
caught within a bounded run: by the tests that are named beside it, or else by ordeals. Exits with 1
if one survives, and with 2 if something is found in the source as it is: then nothing can be said
of mutants. A row whose text is no longer in the source fails a test of the suite.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
#: The ordeals that a mutant is put through.
FAULT_SEEDS = ("--seeds", "0-31", "--events", "700", "--share", "2")
#: The seconds that the source itself may take, and how much longer than it a mutant may.
SUITE_TIMEOUT, FAULTS_TIMEOUT, STARTUP_SECONDS = 3600.0, 3, 60
WORKERS = max(os.cpu_count() or 1, 1)
_SHOWN = 120


class Mutant(NamedTuple):
    """A planted bug: what stands where in place of what, and which tests know better."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()


MUTANTS = (
    Mutant(
        "a pod is bound for its namesake",
        "server/binding.py",
        'if binding.get("uid") != pod["metadata"]["uid"]:',
        "if False:",
    ),
    Mutant(
        "a gang is placed with one member too few",
        "scheduler/placement/group_placement.py",
        "return self.scheduled >= self._quorum",
        "return self.scheduled + 1 >= self._quorum",
    ),
    Mutant(
        "binds are not entered in the ledger",
        "server/binding.py",
        "writes += entries(context.store, [(NOTHING, taken_room) for _, _, taken_room in changes])",
        "",
    ),
    Mutant(
        "room is not checked at the commit",
        "server/binding.py",
        "if short := _take(room, taken_room.amounts):",
        'if (short := _take(room, taken_room.amounts)) and short == "":',
    ),
    Mutant(
        "a taint leaves views as they were",
        "scheduler/cluster/snapshot.py",
        "            remembered.clear()\n        self._new_epoch()",
        "            remembered.clear()",
    ),
    Mutant(
        "a new label leaves masks as they were",
        "scheduler/cluster/snapshot.py",
        "            remembered.clear()\n        self._new_epoch()",
        "            remembered.copy()\n        self._new_epoch()",
    ),
    Mutant(
        "what could not be bound stays assumed",
        "scheduler/queue/scheduler_state.py",
        "freed = self.cache.forget(undone)",
        "freed = ()",
    ),
    Mutant(
        "what cures a refusal is missed during the attempt",
        "scheduler/queue/scheduling_queue.py",
        "if entry.missed & wakes_on:",
        "if False:",
        (
            "tests/scheduler/queue/test_queue_attempts.py",
            "tests/scheduler/queue/test_queue_model.py",
        ),
    ),
    Mutant(
        "room that comes free wakes nobody",
        "scheduler/cluster/cache.py",
        "gone = (Event.POD_GONE,) if (moved and before) or released else ()",
        "gone = ()",
    ),
    Mutant(
        "members of a trial do not count for those after them",
        "scheduler/plugins/peer_counts.py",
        "                watched.headcount.add(node)\n\n    def crowd",
        "                pass\n\n    def crowd",
    ),
    Mutant(
        "a group forgets that it was placed",
        "controllers/scheduling/status_writer.py",
        'if old is None or old.status == "True":',
        "if old is None:",
    ),
    Mutant(
        "a gate holds nobody back",
        "scheduler/queue/queued_entity.py",
        "        if self.gated:",
        "        if False:",
    ),
    Mutant(
        "late members are bound although those before them were not",
        "controllers/scheduling/binder.py",
        "void = self._dependents(batch[0]) if error is not None else []",
        "void = []",
    ),
    Mutant(
        "members that come back during an attempt are tried again at once",
        "scheduler/queue/scheduling_queue.py",
        "(State.IN_FLIGHT, Stimulus.RETURNED): Queue._returned_in_flight,",
        "(State.IN_FLIGHT, Stimulus.RETURNED): Queue._stay,",
        ("tests/scheduler/queue/test_queue_attempts.py",),
    ),
    Mutant(
        "a bind without an answer is never told of",
        "controllers/scheduling/status_writer.py",
        "if sum(bool(pod.spec.node_name) for pod in self._members[key]) >= quorum:",
        "if False:",
        ("tests/controllers/scheduling/test_status_writer.py",),
    ),
    Mutant(
        "a pod made again is taken for the one before",
        "scheduler/queue/scheduling_queue.py",
        "if strange or (assumed and assumed.metadata.uid != uid):",
        "if False:",
        ("tests/scheduler/queue/test_scheduling_queue.py",),
    ),
    Mutant(
        "a pod that is leaving still counts as a member",
        "scheduler/cluster/cache.py",
        "return None if self.leaving or self.doomed else self.group",
        "return self.group",
    ),
    Mutant(
        "somebody makes way for one who is no more important",
        "scheduler/preemption/eviction_units.py",
        "            if pod.priority < below:",
        "            if pod.priority <= below:",
    ),
    Mutant(
        "a group that goes as a whole is taken apart",
        "scheduler/preemption/eviction_units.py",
        "return mode is not None and mode.all is not None",
        "return False",
    ),
    Mutant(
        "others make way although the gang does not fit even then",
        "scheduler/preemption/evaluator.py",
        "isinstance(result, Objection) or not result.is_enough else result",
        "isinstance(result, Objection) or not result.seats else result",
    ),
    Mutant(
        "a tree is given up although there is room for just as many groups as it needs",
        "scheduler/placement/capacity_estimate.py",
        "is_enough and sum(part.suffices() for part in self._parts) >= self._groups",
        "is_enough and sum(part.suffices() for part in self._parts) > self._groups",
        tests=("tests/scheduler/placement/test_capacity_estimate.py",),
    ),
    Mutant(
        "what was promised to one is given to another",
        "scheduler/cycle.py",
        "if claim.priority >= entity.priority and key not in own",
        "if claim.priority > entity.priority and key not in own",
    ),
    Mutant(
        "a tree is placed with one group too few",
        "scheduler/group_tree_placement.py",
        "return self.scheduled >= self.entity.quorum",
        "return self.scheduled + 1 >= self.entity.quorum",
    ),
    Mutant(
        "who waits for others to leave has more of them leave",
        "scheduler/preemption/evaluator.py",
        "    if leaving:\n        result",
        "    if False:\n        result",
    ),
    Mutant(
        "a Workload of an earlier Job of that name is adopted",
        "controllers/jobs/scheduling_intent.py",
        "return found.uid == owner if found else MANAGED_BY not in meta.annotations",
        "return True if found else MANAGED_BY not in meta.annotations",
        ("tests/controllers/jobs/test_scheduling_objects.py",),
    ),
    Mutant(
        "a pod is let go before it is written down",
        "controllers/jobs/controller.py",
        "        found = await self._place(due)\n",
        "        await self._hands.release(due.release)\n        found = await self._place(due)\n",
        ("tests/controllers/jobs/test_fault_tolerance.py",),
    ),
    Mutant(
        "a pod is counted twice",
        "controllers/jobs/sync.py",
        "if not (roll.belongs(pod) and roll.is_new(pod)):",
        "if not roll.belongs(pod):",
        ("tests/controllers/jobs/test_pod_counts.py",),
    ),
    Mutant(
        "a Job is looked at before what was done about it is seen",
        "controllers/jobs/controller.py",
        "if not self._tools.writes.are_seen(key):",
        "if False:",
        ("tests/controllers/jobs/test_fault_tolerance.py",),
    ),
    Mutant(
        "pods are made without their group",
        "controllers/jobs/controller.py",
        "made = await self._make(due, found) if found else 0",
        "made = await self._make(due, found or PLAIN)",
        ("tests/controllers/jobs/test_workload_objects.py",),
    ),
    Mutant(
        "pods are made although the user's Workload was seen meanwhile",
        "controllers/jobs/workload_objects.py",
        "if not isinstance(self._own_workload(), Found):",
        "if False:",
        ("tests/controllers/jobs/test_fault_tolerance.py",),
    ),
    Mutant(
        "a Job stands where its objects no longer are",
        "controllers/jobs/scheduling_intent.py",
        "if Objects.seen(view, self.workload) != self.objects:",
        "if False:",
        ("tests/controllers/jobs/test_workload_objects.py",),
    ),
    Mutant(
        "an index forgets how often it has failed",
        "controllers/jobs/completion.py",
        "return not is_over and is_last and self.last_failed[index] is pod",
        "return False",
        ("tests/controllers/jobs/test_pod_failures.py",),
    ),
    Mutant(
        "a group is let go on the word of a late view",
        "controllers/pod_groups/protection.py",
        "if plan.actions and is_to_go and await self._has_members(key):",
        "if False:",
        ("tests/controllers/pod_groups/test_protection.py",),
    ),
    Mutant(
        "an owner is gone if a late view says so",
        "controllers/garbage_collector.py",
        "known = self._ownership.held(owner) or await self._read(owner)",
        "known = self._ownership.held(owner)",
        ("tests/controllers/test_garbage_collector_lag.py",),
    ),
    Mutant(
        "an owner is taken for its namesake",
        "controllers/garbage_collector.py",
        "return found.metadata if found.metadata.uid == owner.uid else None",
        "return found.metadata",
        (
            "tests/controllers/test_garbage_collector_owners.py",
            "tests/controllers/test_fault_trials.py",
        ),
    ),
    Mutant(
        "a composite group goes before the children that a late view lacks",
        "controllers/pod_groups/composite_groups.py",
        "if composite is None or not _is_leaving(composite):",
        "if True:",
        ("tests/controllers/pod_groups/test_composite_groups.py",),
    ),
    Mutant(
        "a group is made for a replica that has ended meanwhile",
        "controllers/pod_groups/replica_groups.py",
        "if not await self._waits(pod):",
        "if False:",
        ("tests/controllers/pod_groups/test_replica_groups.py",),
    ),
    Mutant(
        "whoever takes over while all nodes are silent drives all pods out",
        "controllers/nodes/node_lifecycle.py",
        "self._silence.suspect(node.metadata.name)",
        "pass",
        ("tests/controllers/nodes/test_node_lifecycle.py",),
    ),
    Mutant(
        "on a foreign server every Job is ours",
        "controllers/registry.py",
        "managers = (OWN_JOB_CONTROLLER,) if bench.is_foreign else MANAGERS",
        "managers = MANAGERS",
        ("tests/controllers/test_controller_manager.py",),
    ),
)


class MutantResult(NamedTuple):
    """What became of a mutant: by what it was caught ("": by nothing), and what that said."""

    found_by: str
    message: str
    seconds: float


def apply_mutant(mutant: Mutant, text: str) -> str:
    """The source with the bug in it."""
    if text.count(mutant.old) != 1:
        raise LookupError(f"{mutant.file} does not hold this once: {mutant.old}")
    return text.replace(mutant.old, mutant.new)


def run_mutant(
    mutant: Mutant, copy: Path, *, suite: bool = False, patience: float = SUITE_TIMEOUT
) -> MutantResult:
    """Plant a bug in a copy of the tree, look whether it is found, and take it out again."""
    file = copy / "src" / "phalanx" / mutant.file
    whole, begin = file.read_text(), time.monotonic()
    file.write_text(apply_mutant(mutant, whole))
    try:
        by, said = _find_failure(mutant, copy, suite, patience)
    finally:
        file.write_text(whole)
    return MutantResult(by, said, time.monotonic() - begin)


def copy_repository(folder: Path) -> Path:
    """A copy of all that is needed to run ordeals and tests."""
    ignored = shutil.ignore_patterns("__pycache__", ".*_cache", "results")
    folder.mkdir(exist_ok=True)
    for part in ("src", "tests", "tools", "pyproject.toml"):
        source, target = ROOT / part, folder / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the mutants that the command line asks for, in a table."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tools.mutants", None, __doc__, formatter_class=plain
    )
    parser.add_argument("--only", default="", help="a part of the names or files of the mutants")
    parser.add_argument("--suite", action="store_true", help="by the tests beside them alone")
    asked = parser.parse_args(arguments)
    chosen, survivors = _select(asked.only, suite=asked.suite), 0
    width = max(len(mutant.name) for mutant in chosen)
    with tempfile.TemporaryDirectory() as folder:
        copies = [copy_repository(Path(folder, str(number))) for number in range(WORKERS)]
        said, seconds = _check_clean(copies[0], chosen, asked.suite)
        if said:
            print(f"the source itself is found to be wrong: {said}")
            return 2
        print(f"the source itself is found to be right in {seconds:.0f} s", flush=True)
        for mutant, verdict in _run_all(
            chosen, copies, asked.suite, FAULTS_TIMEOUT * seconds + STARTUP_SECONDS
        ):
            by, said, took = verdict
            survivors += not by
            print(f"{mutant.name:<{width}}  {by or 'SURVIVED':<8}  {took:5.0f} s  {said}")
            sys.stdout.flush()
    print(f"{survivors} survived" if survivors else "all caught")
    return 1 if survivors else 0


def _run_all(
    mutants: Sequence[Mutant], copies: Sequence[Path], suite: bool, patience: float
) -> Iterator[tuple[Mutant, MutantResult]]:
    """What becomes of each, in their order; as many at once as there are copies to plant in."""
    free: Queue[Path] = Queue()
    for copy in copies:
        free.put(copy)

    def judged(mutant: Mutant) -> MutantResult:
        copy = free.get()
        try:
            return run_mutant(mutant, copy, suite=suite, patience=patience)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from zip(mutants, pool.map(judged, mutants), strict=True)


def _select(words: str, *, suite: bool) -> list[Mutant]:
    """Those whose name or file holds some words; where tests alone are asked, that have some."""
    named = [one for one in MUTANTS if words in f"{one.name} {one.file}"]
    return [one for one in named if one.tests or not suite]


def _check_clean(copy: Path, mutants: Sequence[Mutant], suite: bool) -> tuple[str, float]:
    """What those who are to find mutants find in the source without any, and how long it takes."""
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    begin = time.monotonic()
    _, said = _find_failure(Mutant("", "", "", "", tests), copy, suite, SUITE_TIMEOUT)
    return said, time.monotonic() - begin


def _find_failure(mutant: Mutant, copy: Path, suite: bool, patience: float) -> tuple[str, str]:
    """By what a mutant is found, and what is said of it. The tests that know it are the quicker."""
    known = ("-q", "-x", "-p", "no:randomly", *mutant.tests)
    if mutant.tests and (said := _failure(copy, patience, "pytest", *known)):
        return "suite", said
    if not suite and (said := _failure(copy, patience, "tools.faults", *FAULT_SEEDS)):
        return "ordeals", said
    return "", ""


def _failure(copy: Path, patience: float, module: str, *arguments: str) -> str:
    """What a run that fails says; nothing, if it goes well."""
    path = os.pathsep.join((str(copy / "src"), str(copy)))
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], cwd=copy, timeout=patience,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end after {patience:.0f} s"
    if not done.returncode:
        return ""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("broken", "FAILED", "E  "))] or lines[-1:]
    return told[0].removeprefix("broken: ").strip()[:_SHOWN]


if __name__ == "__main__":
    sys.exit(main())
