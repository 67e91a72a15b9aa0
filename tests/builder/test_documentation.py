"""What the documentation shows works as shown, and it shows everything."""

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


def shown(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert isinstance(block, str)
    return block


def test_the_controller_of_the_page_prints_what_the_page_says() -> None:
    printed, names = io.StringIO(), dict[str, Any]()
    with contextlib.redirect_stdout(printed):
        exec(compile(shown("python"), "docs/builder.md", "exec"), names)
    assert printed.getvalue() == shown("text")


def test_the_controller_of_the_page_is_short() -> None:
    assert len(shown("python").splitlines()) < 60


@pytest.mark.parametrize("name", phalanx.builder.__all__)
def test_every_name_is_documented_and_there(name: str) -> None:
    assert re.search(rf"`{name}\b|`[^`\n]*\b{name}\(", PAGE)
    assert hasattr(phalanx.builder, name)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_work(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
