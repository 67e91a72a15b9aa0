"""What devices cost: gangs whose pods have a claim each, compared with the same gangs without.

Three runs of one size: without claims, with named claims that exist before, and with claims from a
template, which the claim controller creates. The numbers are ratios of the times from the first
created pod to the last binding, measured one after the other; the best run of each counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.decisions import PlacementCase, measure_milliseconds
from benchmarks.environment import BenchmarkEnvironment, Result
from benchmarks.gang_binding import BindingCase, run
from benchmarks.gangs import Workload

#: The largest ratio for each kind of claims.
TARGETS = {"named": 2.0, "template": 3.0}
DECISION = PlacementCase(5_000, 1, 1_000, 40, devices=8)
MAX_ROUNDS = 3


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure the decision for interchangeable devices, and the whole control plane."""
    decision = DECISION.quick() if setting.is_quick else DECISION
    milliseconds = measure_milliseconds(decision)
    yield Result(decision.name, milliseconds, "ms", decision.target_ms)
    best: dict[str, Result] = {}
    for _ in range(1 if setting.is_quick else MAX_ROUNDS):
        for claims in ("", *TARGETS):
            case = BindingCase(Workload(5000, 3, 1000, claims=claims))
            found = run(setting, case.quick() if setting.is_quick else case)
            if claims not in best or found.value < best[claims].value:
                best[claims] = found
        if all(_ratio(best, claims).mark == "ok" for claims in TARGETS):
            break
    for claims in TARGETS:
        yield _ratio(best, claims, has_target=not setting.is_quick)


def _ratio(best: dict[str, Result], claims: str, *, has_target: bool = True) -> Result:
    """Compare the time with claims with that without."""
    plain, found = best[""], best[claims]
    beside = {"s": found.value, "s without": plain.value}
    if "server s" in found.beside and "server s" in plain.beside:
        beside["CPU ratio"] = found.beside["server s"] / plain.beside["server s"]
    return Result(
        found.name,
        found.value / plain.value,
        "times",
        TARGETS[claims] if has_target else None,
        beside=beside,
        note=found.note or plain.note,
    )
