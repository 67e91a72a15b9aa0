"""Names and prose use Kubernetes' vocabulary: a ratchet that a machine can check.

`tests/house_words.txt` lists the words that do not occur in identifiers, documents, command line
texts and test names, each with the ordinary uses that are allowed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "phalanx"
MODULES = tuple(sorted(SOURCE.rglob("*.py")))
PYTHON = tuple(
    sorted(
        path
        for part in ("src", "tests", "tools", "benchmarks", "examples")
        for path in (ROOT / part).rglob("*.py")
    )
)
DOCUMENTS = tuple(
    sorted(
        (
            *ROOT.glob("*.md"),
            *ROOT.glob("docs/**/*.md"),
            *ROOT.glob("examples/**/*.md"),
            *ROOT.glob("benchmarks/*.md"),
        )
    )
)
#: Public class names that exist more than once, with the reason.
SHARED_CLASS_NAMES = {
    "Cluster": "phalanx.Cluster (library) and phalanx.testing.Cluster (test fixture) are contracts",
}
#: The share of functions that may be named by a bare past participle.
PARTICIPLE_SHARE = 0.03
IRREGULAR_PARTICIPLES = frozenset(
    """
    begun born bound brought built chosen come cut done drawn driven fallen felt found given gone
    grown held kept known laid led left lent lost made meant met paid put read run said seen sent
    set shown shut sought spoken spread spent stood sworn taken thought told torn understood won
    worn woven written
    """.split()  # noqa: SIM905
)
#: Participles that are also the verb in the present tense, and nouns that end in "ed".
VERBS_AND_NOUNS = frozenset(
    """
    bound come cut embed exceed feed found lead left need proceed put read run seed set shed shut
    speed spread succeed
    """.split()  # noqa: SIM905
)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """Millions of nodes would slow down every garbage collection of the tests that follow."""
    yield
    tree.cache_clear()


def words(identifier: str) -> list[str]:
    """The words of a name, in snake case or camel case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]+", identifier)]


def is_value(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is read like an attribute."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def is_participle(word: str) -> bool:
    if word in VERBS_AND_NOUNS:
        return False
    return word in IRREGULAR_PARTICIPLES or (len(word) > 4 and word.endswith("ed"))


@cache
def house_words() -> Mapping[str, tuple[str, ...]]:
    """Each word with the patterns in which it is allowed."""
    found: dict[str, tuple[str, ...]] = {}
    for line in (ROOT / "tests" / "house_words.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            word, _, allowed = line.partition(": ")
            found[word] = (*found.get(word, ()), *([allowed] if allowed else []))
    return found


def is_house_word(word: str, name: str) -> bool:
    """Whether a word of an identifier is on the list and not an allowed use."""
    allowed = house_words().get(word)
    return allowed is not None and not any(re.search(pattern, name) for pattern in allowed)


@cache
def has_house_word(name: str) -> bool:
    return any(is_house_word(word, name) for word in words(name))


def identifiers(module: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Every name that a module defines."""
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node, name
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield node, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node, name
            case ast.alias(asname=str(name)):
                yield node, name


def house_words_in_prose(text: str) -> list[str]:
    """The house words of a text. Only words that occur are looked up in their allowed uses."""
    found = []
    for word in sorted(set(re.findall(r"\w+", text.lower())) & house_words().keys()):
        rest = text
        for pattern in house_words()[word]:
            rest = re.sub(pattern, "", rest)
        found += [word] * len(re.findall(rf"\b{word}\b", rest, re.IGNORECASE))
    return found


def test_public_class_names_are_unique() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        for name in re.findall(r"^ *class ([^\W_]\w*)[(:]", path.read_text(), re.MULTILINE):
            homes[name].add(str(path.relative_to(SOURCE)))
    several = {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in several.items() if name not in SHARED_CLASS_NAMES} == {}
    assert len(SHARED_CLASS_NAMES) <= 10


def test_functions_are_named_by_verbs() -> None:
    functions = [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node.name)
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_value(node)
    ]
    named_by_participles = [
        place for place, name in functions if is_participle((words(name) or [""])[0])
    ]
    share = len(named_by_participles) / len(functions)
    assert share <= PARTICIPLE_SHARE, "\n".join(named_by_participles)


def test_identifiers_contain_no_house_words() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {name}"
        for path in PYTHON
        # Most files have no such word at all, not even in an allowed use: those need no parser.
        if any(has_house_word(word) for word in set(re.findall(r"\w+", path.read_text())))
        for node, name in identifiers(tree(path))
        if has_house_word(name)
    }
    assert sorted(found) == []


def test_module_names_contain_no_house_words() -> None:
    found = [path for path in PYTHON if any(word in house_words() for word in words(path.stem))]
    assert found == []


def test_documents_contain_no_house_words() -> None:
    found = {
        str(path.relative_to(ROOT)): sorted(set(words_found))
        for path in DOCUMENTS
        if (words_found := house_words_in_prose(path.read_text()))
    }
    assert found == {}


def test_docstrings_comments_and_texts_contain_no_house_words() -> None:
    found = {
        str(path.relative_to(ROOT)): sorted(set(words_found))
        for path in PYTHON
        if path.name != Path(__file__).name
        if (words_found := house_words_in_prose(path.read_text()))
    }
    assert found == {}
