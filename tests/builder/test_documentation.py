"""docs/builder.md: its example runs, and it mentions every exported name."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import phalanx.builder

PAGE = (Path(__file__).parent.parent.parent / "docs" / "builder.md").read_text()
MODULES = [
    "phalanx.builder",
    *(one.name for one in pkgutil.iter_modules(phalanx.builder.__path__, "phalanx.builder.")),
]


def code_block(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert isinstance(block, str)
    return block


def test_example_controller_prints_the_documented_output() -> None:
    printed, names = io.StringIO(), dict[str, Any]()
    with contextlib.redirect_stdout(printed):
        exec(compile(code_block("python"), "docs/builder.md", "exec"), names)
    assert printed.getvalue() == code_block("text")


def test_example_controller_is_short() -> None:
    assert len(code_block("python").splitlines()) < 60


@pytest.mark.parametrize("name", phalanx.builder.__all__)
def test_every_exported_name_is_documented(name: str) -> None:
    assert re.search(rf"`{name}\b|`[^`\n]*\b{name}\(", PAGE)
    assert hasattr(phalanx.builder, name)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_work(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
