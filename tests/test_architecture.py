"""The shape of the repository, as rules that a machine can check.

Layers and purity by imports are contracts in `.importlinter`; here stand the budgets for size, the
rest of purity, and what every file owes to its readers.
"""

from __future__ import annotations

import ast
import importlib
import re
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "phalanx"
MODULES = tuple(sorted(SOURCE.rglob("*.py")))
PURE = tuple(
    path for path in MODULES if path.relative_to(SOURCE).parts[0] in {"api", "builder", "scheduler"}
)
SCRIPTS = tuple(
    sorted(
        path for part in ("benchmarks", "examples", "tools") for path in ROOT.glob(f"{part}/*.py")
    )
)
TESTS = tuple(sorted((ROOT / "tests").rglob("*.py")))
TEXTS = tuple(
    sorted(
        path
        for part in ("src", "tests", "docs", "tools", "benchmarks", "examples", ".ci", ".")
        for path in (ROOT.glob("*") if part == "." else (ROOT / part).rglob("*"))
        if path.is_file() and path.suffix in {"", ".md", ".py", ".toml", ".yaml", ".json", ".txt"}
    )
)
FUNCTION_MEDIAN, FUNCTION_NINE_TENTHS, FUNCTION_LIMIT, FILE_LIMIT = 9, 35, 60, 500
NAMELESS = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def lengths() -> dict[str, int]:
    """How many lines each function has, from its signature to its end."""
    return {
        f"{place(path, node)} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


# ---- size ----------------------------------------------------------------------------------------


def test_no_function_is_longer_than_a_screen() -> None:
    assert {name: n for name, n in lengths().items() if n > FUNCTION_LIMIT} == {}


def test_most_functions_are_short() -> None:
    ordered = sorted(lengths().values())
    assert statistics.median(ordered) <= FUNCTION_MEDIAN
    assert ordered[len(ordered) * 9 // 10] <= FUNCTION_NINE_TENTHS


def test_no_file_is_too_long_to_be_read_at_once() -> None:
    files = (*MODULES, *SCRIPTS, *TESTS)
    sizes = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in files}
    assert {path: n for path, n in sizes.items() if n > FILE_LIMIT} == {}


# ---- names and words -----------------------------------------------------------------------------


def test_every_file_is_named_for_a_noun() -> None:
    assert [path for path in (*MODULES, *SCRIPTS) if path.stem.strip("_") in NAMELESS] == []


def test_every_module_says_what_it_is() -> None:
    assert [path for path in (*MODULES, *SCRIPTS) if not ast.get_docstring(tree(path))] == []


def test_nothing_is_left_to_be_done() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert [path for path in (*MODULES, *SCRIPTS) if mark.search(path.read_text())] == []


def test_only_commands_print() -> None:
    printing = [
        place(path, node)
        for path in MODULES
        if path.relative_to(SOURCE).parts[0] != "cli"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert printing == []


def test_the_repository_speaks_of_no_machine() -> None:
    home = re.compile(r"(?<![\w.}])/(?:" + "|".join(("work", "root", "tmp")) + ")/")
    assert [path for path in TEXTS if home.search(path.read_text())] == []


# ---- the public surface --------------------------------------------------------------------------


def test_what_is_exported_is_sorted_and_can_be_imported() -> None:
    package = importlib.import_module("phalanx")
    names = list(package.__all__)
    assert names == sorted(names)
    assert [name for name in names if not hasattr(package, name)] == []


# ---- purity --------------------------------------------------------------------------------------

#: Calls that read a clock or draw lots, by the last words of their dotted name.
IMPURE = re.compile(
    r"(^|\.)(time|random|uuid|secrets)\.\w+$|(^|\.)datetime\.(now|utcnow|today)$"
    r"|(^|\.)date\.today$|(^|\.)os\.urandom$"
)
#: Calls to which the order of what they are given does not matter.
ORDERLESS = {"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"}
#: Calls that keep the order of what they are given.
ORDERED = {"dict", "enumerate", "iter", "list", "map", "next", "reversed", "tuple", "zip"}


def impure_calls(module: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and IMPURE.search(ast.unparse(node.func)):
            yield node


def foreign_imports(module: ast.Module) -> Iterator[ast.AST]:
    """Imports of our own rooms that are not pure themselves."""
    for node in ast.walk(module):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(re.match(r"phalanx(?!\.(api|builder|scheduler)\b)", name) for name in names):
            yield node


def is_set(node: ast.AST) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(
            left=left, right=right, op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub()
        ):
            return is_set(left) or is_set(right)
    return False


def iterated(node: ast.AST) -> list[ast.expr]:
    """What a node goes through in an order that its result shows."""
    match node:
        case ast.For(iter=source):
            return [source]
        case ast.ListComp(generators=parts) | ast.DictComp(generators=parts):
            return [part.iter for part in parts]
        case ast.Call(func=ast.Name(id=name), args=args) if name in ORDERED:
            return args
        case ast.Call(func=ast.Attribute(attr="join"), args=args):
            return args
        case ast.Call(func=ast.Name(id=name)) if name in ORDERLESS:
            return []
        case ast.Call(args=args):
            inner = [arg for arg in args if isinstance(arg, ast.GeneratorExp)]
            return [part.iter for arg in inner for part in arg.generators]
    return []


def iterated_sets(module: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(module):
        yield from (source for source in iterated(node) if is_set(source))


@pytest.mark.parametrize("wrong", [impure_calls, foreign_imports, iterated_sets])
def test_deciding_is_pure(wrong: Callable[[ast.Module], Iterator[ast.AST]]) -> None:
    found = [
        f"{place(path, node)} {ast.unparse(node)}" for path in PURE for node in wrong(tree(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("now = datetime.datetime.now(UTC)", impure_calls),
        ("at = time.monotonic()", impure_calls),
        ("lot = random.Random(1)", impure_calls),
        ("from phalanx.clock import Clock", foreign_imports),
        ("import phalanx.telemetry", foreign_imports),
        ("for x in {1, 2}: pass", iterated_sets),
        ("y = [x for x in set(a) - b]", iterated_sets),
        ("y = tuple(frozenset(a))", iterated_sets),
        ("y = ', '.join({'a', 'b'})", iterated_sets),
        ("y = put(x for x in {1, 2})", iterated_sets),
    ],
)
def test_impurity_is_noticed(line: str, wrong: Callable[[ast.Module], Iterator[ast.AST]]) -> None:
    assert list(wrong(ast.parse(line))) != []


@pytest.mark.parametrize(
    "line",
    [
        "from phalanx.api.core import Pod",
        "for x in sorted({1, 2}): pass",
        "y = {x for x in set(a)}",
        "y = any(x for x in {1, 2})",
        "y = datetime.fromtimestamp(now, UTC)",
    ],
)
def test_purity_is_left_alone(line: str) -> None:
    module = ast.parse(line)
    assert [*impure_calls(module), *foreign_imports(module), *iterated_sets(module)] == []


# ---- what contributors read ----------------------------------------------------------------------


def test_contributors_are_told_every_make_target() -> None:
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    told = (ROOT / "CONTRIBUTING.md").read_text()
    assert [target for target in targets if f"`make {target}`" not in told] == []


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    records = sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    assert [name[:5] for name in records] == [f"{n:04}-" for n in range(1, len(records) + 1)]
    listed = (folder / "README.md").read_text()
    assert [name for name in records if f"]({name})" not in listed] == []
