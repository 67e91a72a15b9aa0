from __future__ import annotations

import subprocess
import sys

from tests.cli.commands import ROOT
from tools.commands import BEGIN, END, update_document


def test_the_reference_of_commands_is_what_they_say_themselves() -> None:
    # In a process of its own: commands that were run before remember how they were asked for help.
    check = [sys.executable, "-m", "tools.commands", "--check"]
    assert subprocess.run(check, cwd=ROOT).returncode == 0, "run: python -m tools.commands"


def test_what_stands_around_the_reference_is_kept() -> None:
    found = update_document(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    assert found.startswith(f"above\n{BEGIN}\n\n### phalanx up\n")
    assert found.endswith(f"{END}\nbelow\n")
    assert "\nold\n" not in found
