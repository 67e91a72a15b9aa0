from __future__ import annotations

import subprocess
import sys

from tests.cli.commands import ROOT
from tools.commands import BEGIN, END, update_document


def test_command_reference_equals_the_help_texts() -> None:
    # In its own process: commands that ran before keep their help options.
    check = [sys.executable, "-m", "tools.commands", "--check"]
    assert subprocess.run(check, cwd=ROOT).returncode == 0, "run: python -m tools.commands"


def test_text_around_the_command_reference_is_kept() -> None:
    document = update_document(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    assert document.startswith(f"above\n{BEGIN}\n\n### phalanx up\n")
    assert document.endswith(f"{END}\nbelow\n")
    assert "\nold\n" not in document
