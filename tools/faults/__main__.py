"""Runs a control plane under random faults in virtual time, and shrinks failures.

    python -m tools.faults --seeds 0-39            runs of these seeds, one line each
    python -m tools.faults --seed 7 --events 500   one run, or its beginning
    python -m tools.faults --seed 7 --shrink       … and the fewest steps that still fail
    python -m tools.faults --seed 7 --digest       … and a hash over all writes
    python -m tools.faults --seed 7 --claims       with volumes and devices
    python -m tools.faults --seed 7 --foreign      … on a server that binds pods one by one

The exit code is 1 if an invariant was violated. `tests/scheduler/verifier.py` checks every
decision, one in `--share` of them thoroughly.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
from collections.abc import Callable, Sequence
from itertools import islice

import orjson

from phalanx.controllers.reconcile_loop import Create, Delete, Patch
from phalanx.sim.simulation import InvariantViolation
from tests.scheduler.verifier import Verifier
from tools.faults.claim_checks import ClaimVerifier
from tools.faults.environment import DEFAULT_OPTIONS, RunOptions
from tools.faults.fault_run import FaultRunResult, run_faults
from tools.faults.plan import generate_steps
from tools.faults.steps import InjectedFault, PlanStep, UserAction

#: Default number of steps, and the share of decisions that are checked thoroughly (one in so many).
DEFAULT_STEPS, DEFAULT_SHARE = 2000, 8
#: Maximum number of shorter runs to shrink a failure.
MAX_SHRINK_ATTEMPTS = 150


def steps_of(
    seed: int, events: int = DEFAULT_STEPS, options: RunOptions = DEFAULT_OPTIONS
) -> list[PlanStep]:
    """Return the steps of a seed."""
    return list(islice(generate_steps(seed, claims=options.claims), events))


def run_with_verifier(
    seed: int,
    steps: Sequence[PlanStep],
    share: int = DEFAULT_SHARE,
    *,
    options: RunOptions = DEFAULT_OPTIONS,
) -> FaultRunResult:
    """Run steps with a verifier. Raises InvariantViolation."""
    # A run leaves little garbage, and collecting it would take a fifth of the time.
    gc.disable()
    try:
        verifier = ClaimVerifier(share) if options.claims else Verifier(share)
        return run_faults(seed, steps, verifier, options=options)
    finally:
        gc.enable()


def reproduce_command(seed: int, events: int, options: RunOptions = DEFAULT_OPTIONS) -> str:
    """Return the command that reproduces a run."""
    mode = " --foreign" if options.is_foreign else " --claims" if options.claims else ""
    return f"python -m tools.faults --seed {seed} --events {events}{mode} --shrink"


def shrink_steps(
    steps: Sequence[PlanStep],
    breaks: Callable[[Sequence[PlanStep]], bool],
    attempts: int = MAX_SHRINK_ATTEMPTS,
) -> list[PlanStep]:
    """Return as few steps as still fail, by leaving out ever smaller parts."""
    left, size = list(steps), max(len(steps) // 2, 1)
    while attempts > 0:
        at = 0
        while at < len(left) and attempts > 0:
            fewer = left[:at] + left[at + size :]
            attempts -= 1
            if fewer and breaks(fewer):
                left = fewer
            else:
                at += size
        if size == 1:
            break
        size = max(size // 2, 1)
    return left


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _create_parser().parse_args(arguments)
    first, _, last = (options.seeds or str(options.seed)).partition("-")
    for seed in range(int(first), int(last or first) + 1):
        if _run_seed(seed, options):
            return 1
    return 0


def _create_parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tools.faults", None, __doc__, formatter_class=plain)
    parser.add_argument("--seed", type=int, default=0, help="the seed to run")
    parser.add_argument("--seeds", metavar="A-B", help="a range of seeds")
    parser.add_argument("--events", type=int, default=DEFAULT_STEPS, help="number of steps")
    parser.add_argument(
        "--share", type=int, default=DEFAULT_SHARE, help="check one in N decisions thoroughly"
    )
    parser.add_argument("--shrink", action="store_true", help="find the fewest steps that fail")
    parser.add_argument("--claims", action="store_true", help="pods claim volumes and devices")
    parser.add_argument(
        "--foreign", action="store_true", help="with claims, on a server without GroupBindings"
    )
    parser.add_argument("--digest", action="store_true", help="print a hash over all writes")
    return parser


def _run_seed(seed: int, options: argparse.Namespace) -> int:
    """Run one seed and print the result; return 1 if an invariant was violated."""
    mode = RunOptions(claims=options.claims or options.foreign, is_foreign=options.foreign)
    steps = steps_of(seed, options.events, mode)

    def run(some: Sequence[PlanStep]) -> FaultRunResult:
        return run_with_verifier(seed, some, options.share, options=mode)

    try:
        outcome = run(steps)
    except InvariantViolation as violation:
        print(f"violation: {violation}\n  {reproduce_command(seed, options.events, mode)}")
        if options.shrink:
            _print_shrunk(steps, violation, run)
        return 1
    print(
        f"seed {seed}: no violation, {outcome.revision} writes",
        outcome.digest if options.digest else "",
    )
    return 0


def _print_shrunk(
    steps: Sequence[PlanStep],
    violation: InvariantViolation,
    run: Callable[[Sequence[PlanStep]], FaultRunResult],
) -> None:
    """Print the fewest steps that violate the same invariant."""
    wanted = _normalize_message(violation)

    def breaks(some: Sequence[PlanStep]) -> bool:
        try:
            run(some)
        except InvariantViolation as found:
            return _normalize_message(found) == wanted
        return False

    few = shrink_steps(steps, breaks)
    print(f"{len(few)} of {len(steps)} steps violate the same invariant:")
    for step in few:
        print(f"  t={step.at:<9g} {describe_step(step.action)}")


def _normalize_message(violation: InvariantViolation) -> str:
    """Return the violated invariant without names and times."""
    return re.sub(r"\S*\d\S*", "#", str(violation).partition(": ")[2])


def describe_step(act: UserAction | InjectedFault) -> str:
    """Describe a step in a few words."""
    match act:
        case Create(kind, obj):
            meta = obj["metadata"]
            where = f"{meta.get('namespace', '')}/{meta['name']}"
            return f"create {kind.name} {where} {orjson.dumps(obj.get('spec', {})).decode()}"
        case Patch(kind, key, change):
            return f"patch {kind.name} {key} {orjson.dumps(change).decode()}"
        case Delete(kind, key, _, grace):
            return f"delete {kind.name} {key}" + (f" within {grace} s" if grace else "")
        case _:
            return str(act)


if __name__ == "__main__":
    sys.exit(main())
