"""Mutation testing: plants bugs one at a time; the fault programme or the suite must find each.

    python -m tools.mutants                    all mutants, in a table
    python -m tools.mutants --only quorum      those with this in their name or file
    python -m tools.mutants --suite            use only the tests that are named with the mutant

A mutant is a small change of a copy of the source; the working tree is never changed. Each must be
found within a bounded run: by its tests, else by fault runs. The exit code is 1 if a mutant
survives, 2 if the unchanged source fails. A test checks that the text of every row is in the
source.
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
#: The fault runs for a mutant.
FAULT_SEEDS = ("--seeds", "0-31", "--events", "700", "--share", "2")
#: Seconds that the unchanged source may take, and the factor for a mutant.
SUITE_TIMEOUT, FAULTS_TIMEOUT, STARTUP_SECONDS = 3600.0, 3, 60
WORKERS = max(os.cpu_count() or 1, 1)
_SHOWN = 120


class Mutant(NamedTuple):
    """A planted bug: file, text, replacement, and the tests that find it."""

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
        "writes += allocation_writes(\n"
        "        context.store, [(NO_ALLOCATION, allocation) for _, _, allocation in changes]\n"
        "    )",
        "",
    ),
    Mutant(
        "room is not checked at the commit",
        "server/binding.py",
        "if short := _reserve(free, allocation.amounts):",
        'if (short := _reserve(free, allocation.amounts)) and short == "":',
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
        "members that a simulation placed do not count for later members",
        "scheduler/plugins/peer_counts.py",
        "                tracked.domain_counts.add(node)\n\n    def count_pods(",
        "                pass\n\n    def count_pods(",
    ),
    Mutant(
        "a group forgets that it was scheduled",
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
        "late members are bound although the ones before them failed",
        "controllers/scheduling/binder.py",
        "dependents = self._remove_dependents(batch[0]) if error is not None else []",
        "dependents = []",
    ),
    Mutant(
        "members that come back during an attempt are tried again at once",
        "scheduler/queue/scheduling_queue.py",
        "(State.IN_FLIGHT, Stimulus.RETURNED): Queue._returned_in_flight,",
        "(State.IN_FLIGHT, Stimulus.RETURNED): Queue._stay,",
        ("tests/scheduler/queue/test_queue_attempts.py",),
    ),
    Mutant(
        "a bind without an answer is never reported",
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
        "the Workload of an earlier Job of the same name is used",
        "controllers/jobs/scheduling_intent.py",
        "return controller.uid == owner_uid",
        "return True",
        ("tests/controllers/jobs/test_scheduling_objects.py",),
    ),
    Mutant(
        "finalizers are removed before the status is written",
        "controllers/jobs/controller.py",
        "        membership = await self._ensure_group(plan)\n",
        "        await self._pod_operations.remove_finalizers(plan.pods_to_untrack)\n"
        "        membership = await self._ensure_group(plan)\n",
        ("tests/controllers/jobs/test_fault_tolerance.py",),
    ),
    Mutant(
        "a pod is counted twice",
        "controllers/jobs/sync.py",
        "if not (pods.has_valid_index(pod) and pods.is_unrecorded(pod)):",
        "if not pods.has_valid_index(pod):",
        ("tests/controllers/jobs/test_pod_counts.py",),
    ),
    Mutant(
        "a Job is synced before the caches show its last writes",
        "controllers/jobs/controller.py",
        "if not self._context.write_tracker.has_caught_up(key):",
        "if False:",
        ("tests/controllers/jobs/test_fault_tolerance.py",),
    ),
    Mutant(
        "pods are created without their PodGroup",
        "controllers/jobs/controller.py",
        "created = await self._create_pods(plan, membership) if membership else 0",
        "created = await self._create_pods(plan, membership or NO_GROUP)",
        ("tests/controllers/jobs/test_workload_objects.py",),
    ),
    Mutant(
        "pods are created although the cache shows the user's Workload meanwhile",
        "controllers/jobs/workload_objects.py",
        "if not isinstance(self._find_own_workload(), ObjectFound):",
        "if False:",
        ("tests/controllers/jobs/test_fault_tolerance.py",),
    ),
    Mutant(
        "the Workload and PodGroup of a Job count as verified after they changed",
        "controllers/jobs/scheduling_intent.py",
        "if SchedulingObjects.from_lister(lister, self.workload) != self.objects:",
        "if False:",
        ("tests/controllers/jobs/test_workload_objects.py",),
    ),
    Mutant(
        "an index loses its failure count",
        "controllers/jobs/completion.py",
        "return not is_over and is_last and self.last_failed_by_index[index] is pod",
        "return False",
        ("tests/controllers/jobs/test_pod_failures.py",),
    ),
    Mutant(
        "a finalizer is removed because of a stale cache",
        "controllers/pod_groups/protection.py",
        "if plan.actions and is_terminating and await self._has_members(key):",
        "if False:",
        ("tests/controllers/pod_groups/test_protection.py",),
    ),
    Mutant(
        "an owner counts as absent if a stale cache lacks it",
        "controllers/garbage_collector.py",
        "known = self._ownership.cached_meta(owner) or await self._read_owner(owner)",
        "known = self._ownership.cached_meta(owner)",
        ("tests/controllers/test_garbage_collector_lag.py",),
    ),
    Mutant(
        "an owner is mistaken for a later object of the same name",
        "controllers/garbage_collector.py",
        "return found.metadata if found.metadata.uid == owner.uid else None",
        "return found.metadata",
        (
            "tests/controllers/test_garbage_collector_owners.py",
            "tests/controllers/test_fault_trials.py",
        ),
    ),
    Mutant(
        "a composite group is removed although a stale cache lacks its children",
        "controllers/pod_groups/composite_groups.py",
        "if composite is None or not _is_terminating(composite):",
        "if True:",
        ("tests/controllers/pod_groups/test_composite_groups.py",),
    ),
    Mutant(
        "a group is created for a replica that has finished",
        "controllers/pod_groups/replica_groups.py",
        "if not await self._is_active(pod):",
        "if False:",
        ("tests/controllers/pod_groups/test_replica_groups.py",),
    ),
    Mutant(
        "a controller that starts while all nodes are silent evicts all pods",
        "controllers/nodes/node_lifecycle.py",
        "self._heartbeats.mark_silent(node.metadata.name)",
        "pass",
        ("tests/controllers/nodes/test_node_lifecycle.py",),
    ),
    Mutant(
        "on a foreign server every Job is reconciled",
        "controllers/registry.py",
        "managers = (OWN_JOB_CONTROLLER,) if context.is_foreign else MANAGED_BY_NAMES",
        "managers = MANAGED_BY_NAMES",
        ("tests/controllers/test_controller_manager.py",),
    ),
)


class MutantResult(NamedTuple):
    """The result: what found the mutant ("": nothing), and its message."""

    found_by: str
    message: str
    seconds: float


def apply_mutant(mutant: Mutant, text: str) -> str:
    """Return the source with the bug."""
    if text.count(mutant.old) != 1:
        raise LookupError(f"{mutant.file} does not hold this once: {mutant.old}")
    return text.replace(mutant.old, mutant.new)


def run_mutant(
    mutant: Mutant, copy: Path, *, suite: bool = False, patience: float = SUITE_TIMEOUT
) -> MutantResult:
    """Plant a bug in a copy of the repository, run the tests, and remove it again."""
    file = copy / "src" / "phalanx" / mutant.file
    whole, begin = file.read_text(), time.monotonic()
    file.write_text(apply_mutant(mutant, whole))
    try:
        by, said = _find_failure(mutant, copy, suite, patience)
    finally:
        file.write_text(whole)
    return MutantResult(by, said, time.monotonic() - begin)


def copy_repository(folder: Path) -> Path:
    """Copy what fault runs and tests need."""
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
    """Run the selected mutants and print a table."""
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
    """Yield the results in order; as many run concurrently as there are copies."""
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
    """Return the mutants whose name or file contains some words; with `suite` those with tests."""
    named = [one for one in MUTANTS if words in f"{one.name} {one.file}"]
    return [one for one in named if one.tests or not suite]


def _check_clean(copy: Path, mutants: Sequence[Mutant], suite: bool) -> tuple[str, float]:
    """Return what fails in the unchanged source, and how long the run takes."""
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    begin = time.monotonic()
    _, said = _find_failure(Mutant("", "", "", "", tests), copy, suite, SUITE_TIMEOUT)
    return said, time.monotonic() - begin


def _find_failure(mutant: Mutant, copy: Path, suite: bool, patience: float) -> tuple[str, str]:
    """Return what finds a mutant and its message; the mutant's own tests run first."""
    known = ("-q", "-x", "-p", "no:randomly", *mutant.tests)
    if mutant.tests and (said := _failure(copy, patience, "pytest", *known)):
        return "suite", said
    if not suite and (said := _failure(copy, patience, "tools.faults", *FAULT_SEEDS)):
        return "ordeals", said
    return "", ""


def _failure(copy: Path, patience: float, module: str, *arguments: str) -> str:
    """Return the message of a failing run; "" if it succeeds."""
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
