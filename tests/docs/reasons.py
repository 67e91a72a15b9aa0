"""Every reason code that the source can say, found where it is said."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cli.commands import ROOT

SOURCE = ROOT / "src" / "phalanx"
ROOMS = ("controllers", "scheduler", "components.py", "server/eviction.py")
#: Which argument of a call is the reason.
CALLS = {
    "CronJobEvent": 0,
    "JobEvent": 0,
    "fallback_event": 0,
    "rejected_status": 0,
    "ConditionUpdate": 1,
    "JobOutcome": 1,
    "_reject": 1,
    "_record_exit": 2,
    "ObjectEvent": 2,
    "_record_event": 1,
    "EntityRejection": 0,
    "Waiting": 1,
    "Impossible": 1,
}
#: Reasons that are chosen by other means than a call: module and the names of its constants.
CONSTANTS = {
    "scheduler/decision.py": ("UNSCHEDULABLE", "SCHEDULER_ERROR", "UNDECIDED"),
    "scheduler/diagnosis/diagnosis.py": ("NOT_READY",),
    "scheduler/diagnosis/what_if.py": ("FITS", "NEVER", "PREEMPTS"),
    "scheduler/diagnosis/queue_order.py": ("NOT_TRIED_YET",),
    "controllers/scheduling/pending_status.py": ("NOT_READY", "INVALID"),
    "controllers/scheduling/status_writer.py": ("SCHEDULING_GATED",),
    "controllers/scheduling/evictor.py": ("PREEMPTION_REASON",),
    "controllers/scheduling/bind_intents.py": ("BINDING_UNDONE", "BINDING_INCOMPLETE"),
    "controllers/nodes/pod_status.py": ("CONTAINERS_NOT_READY",),
    "controllers/nodes/taint_eviction.py": ("_REASON",),
}
#: What is put into reasons that are made of parts: whose objects they are about.
PARTS = ("Workload", "PodGroup")
#: Reasons that are looked up in tables or come in pairs, which no call shows.
OTHERS = {"GroupsLost", "GroupsBack", "JobSuspended", "JobResumed", "MinCountSatisfied"}


def reasons() -> set[str]:
    """All of them."""
    found = {value for path in _files() for value in _said(ast.parse(path.read_text()))}
    for module, names in CONSTANTS.items():
        known = _constants(ast.parse((SOURCE / module).read_text()))
        found |= {known[name] for name in names}
    return {one for one in found | OTHERS if one[:1].isupper() and one.isalpha()}


def _files() -> Iterator[Path]:
    for room in ROOMS:
        path = SOURCE / room
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _said(tree: ast.Module) -> Iterator[str]:
    known = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            place = CALLS.get(name, len(node.args))
            if place < len(node.args):
                yield from _values(node.args[place], known)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "reason":
                    yield from _values(value, known)


def _values(node: ast.expr, known: Mapping[str, str]) -> Iterator[str]:
    """The texts that an expression may be."""
    if isinstance(node, ast.JoinedStr):
        yield from _joined(node)
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
        elif isinstance(part, ast.Name) and part.id in known:
            yield known[part.id]


def _joined(node: ast.JoinedStr) -> Iterator[str]:
    for word in PARTS:
        parts = (one.value if isinstance(one, ast.Constant) else word for one in node.values)
        yield "".join(map(str, parts))


def _constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module gives names to."""
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
