"""Rules about the repository's structure that a machine can check.

Layers and purity by imports are contracts in `.importlinter`; `test_language.py` checks names.
This module checks the budgets for size, the rest of purity, and what every file must contain.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "phalanx"
MODULES = tuple(sorted(SOURCE.rglob("*.py")))
PURE = tuple(
    path for path in MODULES if path.relative_to(SOURCE).parts[0] in {"api", "builder", "scheduler"}
)
SCRIPTS = tuple(
    sorted(
        path for part in ("benchmarks", "examples", "tools") for path in (ROOT / part).rglob("*.py")
    )
)
TESTS = tuple(sorted((ROOT / "tests").rglob("*.py")))
TEXTS = tuple(
    sorted(
        path
        for part in ("src", "tests", "docs", "tools", "benchmarks", "examples", ".ci", ".")
        for path in (ROOT.glob("*") if part == "." else (ROOT / part).rglob("*"))
        # In a linked work tree .git is a file with a path.
        if path.is_file()
        and path.name != ".git"
        and path.suffix in {"", ".md", ".py", ".toml", ".yaml", ".json", ".txt"}
    )
)
#: Upper limits only: a reader pays for every hop between small functions and small files.
FUNCTION_LIMIT, FILE_LIMIT = 60, 600
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a module."""
    return tuple(ast.walk(tree(path)))


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """Millions of nodes would slow down every garbage collection of the tests that follow."""
    yield
    tree.cache_clear()
    nodes.cache_clear()


def location(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def function_lengths() -> dict[str, int]:
    """Count the lines of each function, from its signature to its end."""
    return {
        f"{location(path, node)} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


# ---- size ----------------------------------------------------------------------------------------


def test_functions_have_at_most_60_lines() -> None:
    assert {name: n for name, n in function_lengths().items() if n > FUNCTION_LIMIT} == {}


def test_files_have_at_most_600_lines() -> None:
    files = (*MODULES, *SCRIPTS, *TESTS)
    sizes = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in files}
    assert {path: n for path, n in sizes.items() if n > FILE_LIMIT} == {}


# ---- whole thoughts ------------------------------------------------------------------------------


class PackageParts(NamedTuple):
    """How many small parts a package has, which a reader pays for with a hop each.

    Helpers are private functions of less than four lines that are called once; predicates and
    async generators may have a name nevertheless. A function takes a fourth argument by position if
    a table or a released version determines its signature.
    """

    helpers: int
    functions_with_four_arguments: int
    modules_under_90_lines: int


#: What is left in each package. No count may rise; lower the row when one falls.
PACKAGE_PARTS = {
    "api": PackageParts(6, 13, 3),
    "builder": PackageParts(0, 1, 0),
    "cli": PackageParts(10, 0, 4),
    "client": PackageParts(1, 1, 1),
    "controllers": PackageParts(15, 0, 4),
    "scheduler": PackageParts(0, 0, 0),
    "server": PackageParts(9, 0, 8),
    "sim": PackageParts(9, 6, 4),
    "store": PackageParts(0, 0, 0),
    "testing": PackageParts(0, 0, 0),
}


@cache
def word_counts() -> Counter[str]:
    return Counter(word for path in MODULES for word in re.findall(r"\b\w+\b", path.read_text()))


def small_helpers(module: Iterable[ast.AST]) -> Iterator[str]:
    """Yield private functions of less than four lines that are called once and not passed on."""
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        for node in module
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    }
    for node in module:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
            continue
        body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
        lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
        is_private = node.name.startswith("_") and not node.name.startswith("__")
        if is_private and lines < 4 and node.name in called and word_counts()[node.name] == 2:
            yield node.name


def functions_with_four_arguments(module: Iterable[ast.AST]) -> Iterator[str]:
    """Yield functions that take four or more arguments by position."""
    for node in module:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
            if len([name for name in names if name not in ("self", "cls")]) >= 4:
                yield node.name


@pytest.mark.parametrize("package", PACKAGE_PARTS)
def test_packages_do_not_get_more_small_parts(package: str) -> None:
    paths = [path for path in MODULES if path.relative_to(SOURCE).parts[0] == package]
    helpers = [name for path in paths for name in small_helpers(nodes(path))]
    functions = [name for path in paths for name in functions_with_four_arguments(nodes(path))]
    modules = [
        path.stem
        for path in paths
        if path.name != "__init__.py" and len(path.read_text().splitlines()) < 90
    ]
    found = PackageParts(len(helpers), len(functions), len(modules))
    rises = [count > limit for count, limit in zip(found, PACKAGE_PARTS[package], strict=True)]
    assert not any(rises), (helpers, functions, modules)


# ---- names and words -----------------------------------------------------------------------------


def test_no_module_is_called_utils_or_the_like() -> None:
    assert [path for path in (*MODULES, *SCRIPTS) if path.stem.strip("_") in VAGUE_NAMES] == []


def test_every_module_has_a_docstring() -> None:
    assert [path for path in (*MODULES, *SCRIPTS) if not ast.get_docstring(tree(path))] == []


def test_no_todo_is_left() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert [path for path in (*MODULES, *SCRIPTS) if mark.search(path.read_text())] == []


def test_only_the_cli_prints() -> None:
    printing = [
        location(path, node)
        for path in MODULES
        if path.relative_to(SOURCE).parts[0] != "cli"
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert printing == []


def test_no_file_names_a_machine_path() -> None:
    home = re.compile(r"(?<![\w.}])/(?:" + "|".join(("work", "root", "tmp")) + ")/")
    assert [path for path in TEXTS if home.search(path.read_text())] == []


# ---- the public surface --------------------------------------------------------------------------


def test_exported_names_are_sorted_and_importable() -> None:
    package = importlib.import_module("phalanx")
    names = list(package.__all__)
    assert names == sorted(names)
    assert [name for name in names if not hasattr(package, name)] == []


# ---- purity --------------------------------------------------------------------------------------

#: Calls that read a clock or use randomness, by the end of their dotted name.
IMPURE = re.compile(
    r"(^|\.)(time|random|uuid|secrets)\.\w+$|(^|\.)datetime\.(now|utcnow|today)$"
    r"|(^|\.)date\.today$|(^|\.)os\.urandom$"
)
#: Calls whose result does not depend on the order of their argument.
ORDERLESS = {"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"}
#: Calls whose result keeps the order of their argument.
ORDERED = {"dict", "enumerate", "iter", "list", "map", "next", "reversed", "tuple", "zip"}


def impure_calls(module: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in module:
        if isinstance(node, ast.Call) and IMPURE.search(ast.unparse(node.func)):
            yield node


def foreign_imports(module: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Find imports of our own packages that are not pure."""
    for node in module:
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


def ordered_iterations(node: ast.AST) -> list[ast.expr]:
    """Return the expressions whose iteration order shows in the result of a node."""
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


def iterated_sets(module: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in module:
        yield from (source for source in ordered_iterations(node) if is_set(source))


@pytest.mark.parametrize("wrong", [impure_calls, foreign_imports, iterated_sets])
def test_pure_packages_are_pure(wrong: Callable[[Iterable[ast.AST]], Iterator[ast.AST]]) -> None:
    found = [
        f"{location(path, node)} {ast.unparse(node)}"
        for path in PURE
        for node in wrong(nodes(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("now = datetime.datetime.now(UTC)", impure_calls),
        ("at = time.monotonic()", impure_calls),
        ("number = random.Random(1)", impure_calls),
        ("from phalanx.clock import Clock", foreign_imports),
        ("import phalanx.telemetry", foreign_imports),
        ("for x in {1, 2}: pass", iterated_sets),
        ("y = [x for x in set(a) - b]", iterated_sets),
        ("y = tuple(frozenset(a))", iterated_sets),
        ("y = ', '.join({'a', 'b'})", iterated_sets),
        ("y = put(x for x in {1, 2})", iterated_sets),
    ],
)
def test_purity_check_finds_impure_code(
    line: str, wrong: Callable[[Iterable[ast.AST]], Iterator[ast.AST]]
) -> None:
    assert list(wrong(ast.walk(ast.parse(line)))) != []


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
def test_purity_check_accepts_pure_code(line: str) -> None:
    module = tuple(ast.walk(ast.parse(line)))
    assert [*impure_calls(module), *foreign_imports(module), *iterated_sets(module)] == []


def test_package_maps_name_every_module() -> None:
    """The docstring of a package is its map: a reader finds a module there by what it does."""
    missing = []
    for package in (path for path in MODULES if path.name == "__init__.py"):
        words = set(re.findall(r"\w+", ast.get_docstring(tree(package)) or ""))
        modules = [path for path in MODULES if path.parent == package.parent]
        parts = [path.parent for path in MODULES if path.parent.parent == package.parent]
        names = {path.stem for path in (*modules, *parts)} - {"__init__", "__main__"}
        missing += [f"{package.relative_to(ROOT)}: {name}" for name in sorted(names - words)]
    assert missing == []


# ---- documents for contributors ------------------------------------------------------------------


def test_contributing_lists_every_make_target() -> None:
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert [target for target in targets if f"`make {target}`" not in contributing] == []


def test_texts_name_modules_that_exist() -> None:
    """A module in backticks (`store/sqlite.py`) is one of ours."""
    modules = {f"/{path.relative_to(ROOT)}" for path in (*MODULES, *SCRIPTS, *TESTS)}
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in TEXTS
        if path.suffix in {".md", ".py"} and "seeds" not in path.parts
        for name in set(re.findall(r"`([\w/]+\.py)`", path.read_text()))
        if not any(module.endswith(f"/{name}") for module in modules)
    }
    assert sorted(missing) == []


def test_decision_records_are_numbered_without_gaps_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    records = sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    assert [name[:5] for name in records] == [f"{n:04}-" for n in range(1, len(records) + 1)]
    listed = (folder / "README.md").read_text()
    assert [name for name in records if f"]({name})" not in listed] == []
