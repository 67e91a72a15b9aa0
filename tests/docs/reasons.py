"""Finds every reason code that the source writes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cli.commands import ROOT

SOURCE = ROOT / "src" / "phalanx"
SEARCHED_PATHS = ("builder", "controllers", "scheduler", "components.py", "server/eviction.py")
#: The position of the reason among the arguments of a call.
CALLS = {
    "CronJobEvent": 0,
    "JobEvent": 0,
    "Fallback": 0,
    "fallback_event": 0,
    "rejected_status": 0,
    "ConditionUpdate": 1,
    "GroupCondition": 1,
    "JobOutcome": 1,
    "_predicate": 0,
    "_reject": 1,
    "_record_exit": 2,
    "ObjectEvent": 2,
    "_record_event": 1,
    "EntityRejection": 0,
    "Waiting": 1,
    "Impossible": 1,
    "BindingNotice": 0,
    "_provisioning_event": 1,
    "_set_event": 0,
}
#: Reasons that are constants of a module: module and names.
CONSTANTS = {
    "api/batch.py": ("QUOTA_EXCEEDED",),
    "cli/scheduler_status.py": ("OTHER_SCHEDULER",),
    "api/scheduling.py": ("REPLACEMENT_UNSCHEDULABLE",),
    "server/eviction.py": ("_EVICTION_REASON",),
    "scheduler/decision.py": ("UNSCHEDULABLE", "SCHEDULER_ERROR", "UNDECIDED"),
    "scheduler/diagnosis/diagnosis.py": ("NOT_READY",),
    "scheduler/diagnosis/what_if.py": ("FITS", "NEVER", "PREEMPTS"),
    "scheduler/diagnosis/queue_order.py": ("NOT_TRIED_YET",),
    "controllers/scheduling/pending_status.py": ("NOT_READY", "INVALID"),
    "controllers/scheduling/status_writer.py": ("SCHEDULING_GATED",),
    "controllers/scheduling/evictor.py": ("PREEMPTION_REASON",),
    "controllers/scheduling/group_reports.py": ("BINDING_UNDONE", "BINDING_INCOMPLETE"),
    "controllers/nodes/pod_status.py": ("CONTAINERS_NOT_READY",),
    "controllers/nodes/taint_eviction.py": ("_REASON",),
    "controllers/resource_claims/device_taint_eviction.py": ("_REASON",),
}
#: The values of placeholders in reasons that are f-strings.
PARTS = ("Workload", "PodGroup")
#: Reasons that come from tables or pairs and that no call contains.
OTHERS = {
    "GroupsLost", "GroupsBack", "JobSuspended", "JobResumed", "MinCountSatisfied",
    "OutOfcpu", "OutOfmemory", "OutOfpods",
}  # fmt: skip


def reasons() -> set[str]:
    """Return all reason codes."""
    found = {value for path in _files() for value in _find_reasons(ast.parse(path.read_text()))}
    for module, names in CONSTANTS.items():
        constants = _constants(ast.parse((SOURCE / module).read_text()))
        found |= {constants[name] for name in names}
    return {value for value in found | OTHERS if value[:1].isupper() and value.isalpha()}


def _files() -> Iterator[Path]:
    for searched in SEARCHED_PATHS:
        path = SOURCE / searched
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _find_reasons(tree: ast.Module) -> Iterator[str]:
    constants = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            position = CALLS.get(_call_name(node), len(node.args))
            if position < len(node.args):
                yield from _values(node.args[position], constants)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "reason":
                    yield from _values(value, constants)


def _values(node: ast.AST, constants: Mapping[str, str]) -> Iterator[str]:
    """Yield the strings that an expression can evaluate to.

    Arguments of a nested call in `CALLS`, as in `_record_event(job, JobEvent(…))`, are left to that
    call: its other arguments are not reasons. The fixed parts of an f-string are no reasons.
    """
    match node:
        case ast.JoinedStr():
            yield from _expand_f_string(node)
        case ast.Constant(value=str(value)):
            yield value
        case ast.Name(id=name) if name in constants:
            yield constants[name]
        case ast.Call() if _call_name(node) in CALLS:
            return
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _values(child, constants)


def _call_name(node: ast.Call) -> str:
    return str(getattr(node.func, "id", getattr(node.func, "attr", "")))


def _expand_f_string(node: ast.JoinedStr) -> Iterator[str]:
    for word in PARTS:
        parts = (value.value if isinstance(value, ast.Constant) else word for value in node.values)
        yield "".join(map(str, parts))


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the string constants of a module by name."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                    found[name.id] = str(value.value)
    return found
