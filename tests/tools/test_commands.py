from __future__ import annotations

from tools.commands import BEGIN, DOCUMENT, END, renewed


def test_the_reference_of_commands_is_what_they_say_themselves() -> None:
    there = DOCUMENT.read_text()
    assert there == renewed(there), "write it anew: python -m tools.commands"


def test_what_stands_around_the_reference_is_kept() -> None:
    found = renewed(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    assert found.startswith(f"above\n{BEGIN}\n\n### phalanx up\n")
    assert found.endswith(f"{END}\nbelow\n")
    assert "\nold\n" not in found
