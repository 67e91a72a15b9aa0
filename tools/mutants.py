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
#: Seconds for the unchanged source; for a mutant a factor on its time, and seconds to start.
SUITE_TIMEOUT, FAULTS_TIMEOUT, STARTUP_SECONDS = 3600.0, 3, 60
WORKERS = max(os.cpu_count() or 1, 1)
_MAX_MESSAGE = 120


class Mutant(NamedTuple):
    """A planted bug: file, text, replacement, and the tests that find it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()


MUTANTS = (
    Mutant(
        "a bind of a deleted pod binds its recreated successor",
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
        "resources are not checked at the commit of a bind",
        "server/binding.py",
        "if short := _reserve(free, requests):",
        'if (short := _reserve(free, requests)) and short == "":',
    ),
    Mutant(
        "node scores are not recomputed after a taint",
        "scheduler/cluster/snapshot.py",
        "            cached.clear()\n        self._new_epoch()",
        "            cached.clear()",
    ),
    Mutant(
        "label masks are not recomputed after a new label",
        "scheduler/cluster/snapshot.py",
        "            cached.clear()\n        self._new_epoch()",
        "            cached.copy()\n        self._new_epoch()",
    ),
    Mutant(
        "a pod whose bind failed stays assumed",
        "scheduler/queue/scheduler_state.py",
        "            *self.cache.forget(failed),\n",
        "",
    ),
    Mutant(
        "an event that cures a rejection is lost during the attempt",
        "scheduler/queue/scheduling_queue.py",
        "elif sum(map(condition.count_cured, entry.missed_changes)) >= entry.lacking:",
        "elif False:",
        (
            "tests/scheduler/queue/test_queue_attempts.py",
            "tests/scheduler/queue/test_queue_model.py",
        ),
    ),
    Mutant(
        "freed resources wake no entity",
        "scheduler/cluster/cache.py",
        "assigned, left = after or new_nomination, before if moved else None",
        "assigned, left = after or new_nomination, None",
    ),
    Mutant(
        "a wake-up is missed: of the members that a gang lacks the last one to fit is not counted",
        "scheduler/queue/waiting_entities.py",
        "if equal.lacking <= 0:",
        "if equal.lacking < 0:",
        ("tests/scheduler/queue/test_quiet_queue.py",),
    ),
    Mutant(
        "a wake-up is missed: the next equal gang is not attempted when the first one is placed",
        "scheduler/queue/waiting_entities.py",
        "        return equal.first()\n",
        "        return None\n",
        ("tests/scheduler/queue/test_quiet_queue.py",),
    ),
    Mutant(
        "members that a simulation placed do not count for later members",
        "scheduler/plugins/peer_counts.py",
        "                tracked.domain_counts.add(node)\n\n    def count_pods(",
        "                pass\n\n    def count_pods(",
    ),
    Mutant(
        "a group loses its condition that it was scheduled",
        "controllers/scheduling/status_writer.py",
        'if old is None or old.status == "True":',
        "if old is None:",
    ),
    Mutant(
        "a scheduling gate does not hold back its entity",
        "scheduler/queue/queued_entity.py",
        "        if self.gated:",
        "        if False:",
    ),
    Mutant(
        "late members are bound although the bind that they depend on failed",
        "controllers/scheduling/binder.py",
        "dependents = self._remove_dependents(batch[0]) if error is not None else []",
        "dependents = []",
    ),
    Mutant(
        "members that return during an attempt are retried at once",
        "scheduler/queue/scheduling_queue.py",
        "QueueTrigger.RETURNED): SchedulingQueue._on_returned_in_flight,",
        "QueueTrigger.RETURNED): SchedulingQueue._ignore,",
        ("tests/scheduler/queue/test_queue_attempts.py",),
    ),
    Mutant(
        "a bind without a response is never reported",
        "controllers/scheduling/status_writer.py",
        "if sum(bool(pod.spec.node_name) for pod in self._members[key]) >= quorum:",
        "if False:",
        ("tests/controllers/scheduling/test_status_writer.py",),
    ),
    Mutant(
        "a recreated pod is mistaken for its predecessor",
        "scheduler/queue/scheduling_queue.py",
        "if is_replaced or (assumed and assumed.metadata.uid != uid):",
        "if False:",
        ("tests/scheduler/queue/test_scheduling_queue.py",),
    ),
    Mutant(
        "a terminating pod still counts as a live member",
        "scheduler/cluster/cache_entries.py",
        "return None if self.terminating or self.evicting else self.group",
        "return self.group",
    ),
    Mutant(
        "a pod is evicted for an entity of equal priority",
        "scheduler/preemption/eviction_units.py",
        "            if pod.priority < below_priority:",
        "            if pod.priority <= below_priority:",
    ),
    Mutant(
        "a group that is disrupted as a unit is evicted in part",
        "scheduler/preemption/eviction_units.py",
        "if mode and mode.all is not None), None",
        "if False), None",
    ),
    Mutant(
        "pods are evicted although the gang does not fit afterwards",
        "scheduler/preemption/evaluator.py",
        "isinstance(result, EntityRejection) or not result.is_feasible else result",
        "isinstance(result, EntityRejection) or not result.assignments else result",
    ),
    Mutant(
        "a tree is rejected although exactly as many groups fit as it needs",
        "scheduler/placement/capacity_estimate.py",
        "        return sufficient >= self._children_needed",
        "        return sufficient > self._children_needed",
        tests=("tests/scheduler/placement/test_capacity_estimate.py",),
    ),
    Mutant(
        "a nominated node is given to an entity of the same priority",
        "scheduler/cluster/hypothetical.py",
        "if nomination.priority >= priority and key not in own",
        "if nomination.priority > priority and key not in own",
    ),
    Mutant(
        "a tree is placed with one group too few",
        "scheduler/group_tree_placement.py",
        "return self.scheduled >= self.entity.quorum",
        "return self.scheduled + 1 >= self.entity.quorum",
    ),
    Mutant(
        "a tree child dropped: the search of a tree forgets its last group",
        "scheduler/search/tree_search.py",
        "children = [build_scope(child, snapshot) for child in entity.children]",
        "children = [build_scope(child, snapshot) for child in entity.children[:-1]]",
        (
            "tests/scheduler/search/test_tree_search.py",
            "tests/scheduler/test_group_tree_placement.py",
        ),
    ),
    Mutant(
        "a preemptor evicts more pods while its victims terminate",
        "scheduler/preemption/evaluator.py",
        "        if result is not None:\n            return (yield from _wait_for_victims",
        "        if False:\n            return (yield from _wait_for_victims",
    ),
    Mutant(
        "the Workload of an earlier Job of the same name is used",
        "builder/discovery.py",
        "        return controller.uid == owner_uid",
        "        return True",
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
        "if not isinstance(find_own_workload(job, self._list_own_workloads()), ObjectFound):",
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
        "controllers/pod_groups.py",
        "if plan.actions and is_terminating and await self._informers.has_live_members(key):",
        "if False:",
        ("tests/controllers/pod_groups/test_protection.py",),
    ),
    Mutant(
        "an owner counts as absent if a stale cache lacks it",
        "controllers/garbage_collector.py",
        "state = await self._read_owner_state(owner)",
        "state = OwnerState.ABSENT",
        ("tests/controllers/test_garbage_collector_lag.py",),
    ),
    Mutant(
        "an owner is mistaken for a later object of the same name",
        "controllers/garbage_collector.py",
        "if meta.uid != owner.uid:",
        "if not meta.uid:",
        (
            "tests/controllers/test_garbage_collector_owners.py",
            "tests/controllers/test_fault_trials.py",
        ),
    ),
    Mutant(
        "an owner of a kind that is not served counts as absent",
        "controllers/garbage_collector.py",
        "if not error.name:",
        "if False:",
        ("tests/controllers/test_garbage_collector_custom_kinds.py",),
    ),
    Mutant(
        "children of a hidden kind are deleted with it",
        "controllers/resource_monitors.py",
        "is_deleted = self._is_defined.get(monitor.kind.resource) is False",
        "is_deleted = True",
        ("tests/controllers/test_garbage_collector_custom_kinds.py",),
    ),
    Mutant(
        "a composite group is removed although a stale cache lacks its children",
        "controllers/pod_groups.py",
        "if composite is None or not _is_terminating(composite):",
        "if True:",
        ("tests/controllers/pod_groups/test_composite_groups.py",),
    ),
    Mutant(
        "a group is created for a replica that has finished",
        "controllers/pod_groups.py",
        "if not _is_same_active_pod(live, pod):",
        "if False:",
        ("tests/controllers/pod_groups/test_replica_groups.py",),
    ),
    Mutant(
        "a controller that starts while all nodes are unresponsive evicts all pods",
        "controllers/nodes/node_lifecycle.py",
        "self._heartbeats.mark_unresponsive(node.metadata.name)",
        "pass",
        ("tests/controllers/nodes/test_node_lifecycle.py",),
    ),
    Mutant(
        "on a foreign server every Job is reconciled",
        "controllers/registry.py",
        "managers=(OWN_JOB_CONTROLLER,) if context.is_foreign else MANAGED_BY_NAMES",
        "managers=MANAGED_BY_NAMES",
        ("tests/controllers/test_controller_manager.py",),
    ),
    Mutant(
        "budget ignored: victims beyond disruption budgets cost nothing",
        "scheduler/preemption/eviction_units.py",
        "violations=self.violations(chosen),",
        "violations=0,",
        (
            "tests/scheduler/preemption/test_evaluator.py",
            "tests/scheduler/preemption/test_victim_optimality.py",
        ),
    ),
    Mutant(
        "nomination kept: a gang that became incomplete keeps its nominated nodes",
        "scheduler/queue/scheduler_state.py",
        "lost = [one for one in held_back if one.was_ready]",
        "lost = [one for one in held_back if one.was_ready][:0]",
        ("tests/scheduler/preemption/test_needless_evictions.py",),
    ),
    Mutant(
        "a backfilled entity delays the reserved one",
        "scheduler/reservation/reservation.py",
        "end is not None and start is not None and end <= start",
        "end is not None and start is not None and end <= start + 600",
        ("tests/scheduler/reservation/test_reservation.py",),
    ),
    Mutant(
        "the reservation of an entity that is gone is kept",
        "scheduler/reservation/tracker.py",
        "before, self.current = self.current, tuple(found)\n        self.version +=",
        "before = self.current\n"
        "        self.current = tuple(dict.fromkeys((*found, *before)))\n"
        "        self.version +=",
        ("tests/scheduler/reservation/test_reservation.py",),
    ),
    Mutant(
        "Jobs are created before their groups exist",
        "controllers/job_sets/sync.py",
        "    if not groups.is_ready:\n        return\n",
        "",
        ("tests/controllers/job_sets/test_job_set_controller.py",),
    ),
    Mutant(
        "a restarted JobSet keeps the groups of the attempt before",
        "controllers/job_sets/scheduling.py",
        'attempt = str(job_set.status.restarts) if job_set.status.restarts else ""',
        'attempt = ""',
        ("tests/controllers/job_sets/test_job_set_controller.py",),
    ),
    Mutant(
        "Jobs of an earlier attempt count as present ones",
        "controllers/job_sets/child_jobs.py",
        "if attempt < job_set.status.restarts or own < expected:",
        "if attempt < 0 or own < expected:",
        ("tests/controllers/job_sets/test_policies.py",),
    ),
    Mutant(
        "a restart that ignores the maximum counts towards it",
        "controllers/job_sets/policies.py",
        "_restart_all(job_set.status, counts=action not in _UNLIMITED)",
        "_restart_all(job_set.status, counts=True)",
        ("tests/controllers/job_sets/test_policies.py",),
    ),
    Mutant(
        "restarts of single Jobs are not limited by maxRestarts",
        "controllers/job_sets/policies.py",
        "    return status.restarts_count_towards_max + sum(alone)",
        "    return status.restarts_count_towards_max",
        ("tests/controllers/job_sets/test_policies.py",),
    ),
    Mutant(
        "the quorum of a JobSet's gang is not lowered as members succeed",
        "controllers/job_sets/scheduling.py",
        "    if job.is_finished:\n        return 0\n    if job.spec.completions is None:",
        "    return pod_count(job)\n    if job.spec.completions is None:",
        ("tests/controllers/job_sets/test_job_set_controller.py",),
    ),
    Mutant(
        "Jobs of a JobSet keep the number of pods that they were created with",
        "controllers/job_sets/sync.py",
        'if have.completion_mode == "Indexed" and wanted.items() - present.items():',
        "if False:",
        ("tests/controllers/job_sets/test_job_set_controller.py",),
    ),
    Mutant(
        "a failed worker does not recreate its group of a LeaderWorkerSet",
        "controllers/leader_worker_sets/sync.py",
        'return "failed" if status.phase == "Failed" or has_restarted else ""',
        'return ""',
        ("tests/controllers/leader_worker_sets/test_scenarios.py",),
    ),
    Mutant(
        "a rolling update takes down one group of a LeaderWorkerSet too many",
        "controllers/leader_worker_sets/rollout.py",
        "lowest = max(total - finished - step, 0)",
        "lowest = max(total - finished - step - 1, 0)",
        ("tests/controllers/leader_worker_sets/test_rollout.py",),
    ),
    Mutant(
        "a replica of a LeaderWorkerSet is ready although its workers are not",
        "controllers/leader_worker_sets/sync.py",
        "is_ready and is_own and workers.status.ready_replicas == workers.spec.replicas",
        "is_ready and is_own",
        ("tests/controllers/leader_worker_sets/test_scenarios.py",),
    ),
    Mutant(
        "the groups of a removed replica of a LeaderWorkerSet stay",
        "controllers/leader_worker_sets/workload_objects.py",
        "if index >= step.replicas or revision not in revisions.sets:",
        "if revision not in revisions.sets:",
        ("tests/controllers/leader_worker_sets/test_group_scheduling.py",),
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
        raise LookupError(f"{mutant.file} does not contain this text exactly once: {mutant.old}")
    return text.replace(mutant.old, mutant.new)


def run_mutant(
    mutant: Mutant, copy: Path, *, suite: bool = False, timeout: float = SUITE_TIMEOUT
) -> MutantResult:
    """Plant a bug in a copy of the repository, run the tests, and remove it again."""
    file = copy / "src" / "phalanx" / mutant.file
    original, begin = file.read_text(), time.monotonic()
    file.write_text(apply_mutant(mutant, original))
    try:
        found_by, message = _find_failure(mutant, copy, suite=suite, timeout=timeout)
    finally:
        file.write_text(original)
    return MutantResult(found_by, message, time.monotonic() - begin)


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
    parser.add_argument("--only", default="", help="a part of the names or files of mutants")
    parser.add_argument("--suite", action="store_true", help="run only the mutants' own tests")
    options = parser.parse_args(arguments)
    chosen = [
        mutant
        for mutant in MUTANTS
        if options.only in f"{mutant.name} {mutant.file}" and (mutant.tests or not options.suite)
    ]
    survivors = 0
    width = max(len(mutant.name) for mutant in chosen)
    with tempfile.TemporaryDirectory() as folder:
        copies = [copy_repository(Path(folder, str(number))) for number in range(WORKERS)]
        message, seconds = _check_clean(copies[0], chosen, suite=options.suite)
        if message:
            print(f"the unchanged source fails: {message}")
            return 2
        print(f"the unchanged source passes in {seconds:.0f} s", flush=True)
        for mutant, result in _run_all(
            chosen, copies, suite=options.suite, timeout=FAULTS_TIMEOUT * seconds + STARTUP_SECONDS
        ):
            found_by, message, took = result
            survivors += not found_by
            print(f"{mutant.name:<{width}}  {found_by or 'SURVIVED':<8}  {took:5.0f} s  {message}")
            sys.stdout.flush()
    print(f"{survivors} survived" if survivors else "all caught")
    return 1 if survivors else 0


def _run_all(
    mutants: Sequence[Mutant], copies: Sequence[Path], *, suite: bool, timeout: float
) -> Iterator[tuple[Mutant, MutantResult]]:
    """Yield the results in order; as many run concurrently as there are copies."""
    free: Queue[Path] = Queue()
    for copy in copies:
        free.put(copy)

    def run_in_free_copy(mutant: Mutant) -> MutantResult:
        copy = free.get()
        try:
            return run_mutant(mutant, copy, suite=suite, timeout=timeout)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from zip(mutants, pool.map(run_in_free_copy, mutants), strict=True)


def _check_clean(copy: Path, mutants: Sequence[Mutant], *, suite: bool) -> tuple[str, float]:
    """Return what fails in the unchanged source, and how long the run takes."""
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    begin = time.monotonic()
    every_test = Mutant("", "", "", "", tests)
    _, message = _find_failure(every_test, copy, suite=suite, timeout=SUITE_TIMEOUT)
    return message, time.monotonic() - begin


def _find_failure(mutant: Mutant, copy: Path, *, suite: bool, timeout: float) -> tuple[str, str]:
    """Return what finds a mutant and its message; the mutant's own tests run first."""
    known = ("-q", "-x", "-p", "no:randomly", *mutant.tests)
    if mutant.tests and (message := _failure(copy, timeout, "pytest", *known)):
        return "suite", message
    if not suite and (message := _failure(copy, timeout, "tools.faults", *FAULT_SEEDS)):
        return "faults", message
    return "", ""


def _failure(copy: Path, timeout: float, module: str, *arguments: str) -> str:
    """Return the message of a failing run; "" if it succeeds."""
    path = os.pathsep.join((str(copy / "src"), str(copy)))
    try:
        process = subprocess.run(
            [sys.executable, "-m", module, *arguments], cwd=copy, timeout=timeout,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"timeout after {timeout:.0f} s"
    if not process.returncode:
        return ""
    lines = [line for line in (process.stdout + process.stderr).splitlines() if line.strip()]
    failures = [line for line in lines if line.startswith(("violation", "FAILED", "E  "))]
    return (failures or lines[-1:])[0].removeprefix("violation: ").strip()[:_MAX_MESSAGE]


if __name__ == "__main__":
    sys.exit(main())
