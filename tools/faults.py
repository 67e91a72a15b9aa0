"""Put a control plane through ordeals in virtual time, and make what breaks it small.

    python -m tools.faults --seeds 0-39            ordeals of these seeds, one line each
    python -m tools.faults --seed 7 --events 500   one of them, or its beginning
    python -m tools.faults --seed 7 --shrink       … and the fewest steps that still break it
    python -m tools.faults --seed 7 --digest       … and a hash over everything that was written

Exits with 1 if anything was broken. Every decision is judged by `tests/scheduler/verifier.py`, one
in `--share` of them thoroughly.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
from collections.abc import Callable, Sequence
from itertools import islice

import orjson

from phalanx.controllers.actions import Create, Delete, Patch
from phalanx.sim.faults import ordeal
from phalanx.sim.faults.ordeal import Outcome
from phalanx.sim.faults.plan import plan
from phalanx.sim.faults.steps import Deed, Fault, Step
from phalanx.sim.run import Violation
from tests.scheduler.verifier import Verifier

#: Steps of an ordeal unless told otherwise, and one in how many decisions is judged thoroughly.
EVENTS, SHARE = 2000, 8
#: How many shorter ordeals are tried to make a failure small.
TRIES = 150


def steps_of(seed: int, events: int = EVENTS) -> list[Step]:
    """What happens in the ordeal of a seed."""
    return list(islice(plan(seed), events))


def endure(seed: int, steps: Sequence[Step], share: int = SHARE) -> Outcome:
    """Go through an ordeal with a verifier at hand; raises a Violation."""
    # An ordeal leaves little behind, and looking for it would take a fifth of the time.
    gc.disable()
    try:
        return ordeal.run(seed, steps, Verifier(share))
    finally:
        gc.enable()


def again(seed: int, events: int) -> str:
    """How to see an ordeal again."""
    return f"python -m tools.faults --seed {seed} --events {events} --shrink"


def shrunk(
    steps: Sequence[Step], breaks: Callable[[Sequence[Step]], bool], tries: int = TRIES
) -> list[Step]:
    """As few of the steps as still break something, by leaving out ever smaller parts."""
    left, size = list(steps), max(len(steps) // 2, 1)
    while tries > 0:
        at = 0
        while at < len(left) and tries > 0:
            fewer = left[:at] + left[at + size :]
            tries -= 1
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
    wish = _parser().parse_args(arguments)
    first, _, last = (wish.seeds or str(wish.seed)).partition("-")
    for seed in range(int(first), int(last or first) + 1):
        if _report(seed, wish):
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tools.faults", None, __doc__, formatter_class=plain)
    parser.add_argument("--seed", type=int, default=0, help="the ordeal to run")
    parser.add_argument("--seeds", metavar="A-B", help="several of them")
    parser.add_argument("--events", type=int, default=EVENTS, help="how many steps")
    parser.add_argument("--share", type=int, default=SHARE, help="judge one decision in so many")
    parser.add_argument("--shrink", action="store_true", help="look for the fewest steps")
    parser.add_argument("--digest", action="store_true", help="print a hash over all writes")
    return parser


def _report(seed: int, wish: argparse.Namespace) -> int:
    """One ordeal, told; 1 if something was broken."""
    steps = steps_of(seed, wish.events)
    try:
        outcome = endure(seed, steps, wish.share)
    except Violation as violation:
        print(f"broken: {violation}\n  {again(seed, wish.events)}")
        if wish.shrink:
            _tell(seed, steps, violation, wish.share)
        return 1
    print(f"seed {seed}: well, {outcome.revision} writes", outcome.digest if wish.digest else "")
    return 0


def _tell(seed: int, steps: Sequence[Step], violation: Violation, share: int) -> None:
    """The fewest steps that break the same thing."""
    wanted = _gist(violation)

    def breaks(some: Sequence[Step]) -> bool:
        try:
            endure(seed, some, share)
        except Violation as found:
            return _gist(found) == wanted
        return False

    few = shrunk(steps, breaks)
    print(f"{len(few)} of {len(steps)} steps break the same:")
    for step in few:
        print(f"  t={step.at:<9g} {spelled(step.act)}")


def _gist(violation: Violation) -> str:
    """What was broken, whoever and whenever."""
    return re.sub(r"\S*\d\S*", "#", str(violation).partition(": ")[2])


def spelled(act: Deed | Fault) -> str:
    """A step in a few words."""
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
