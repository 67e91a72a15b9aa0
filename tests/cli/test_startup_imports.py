"""Modules that a command imports: imports take most of its start-up time."""

from __future__ import annotations

import subprocess
import sys

#: Modules that are slow to import and that only some commands need.
HEAVY = ("asyncio", "numpy", "cryptography", "phalanx.server.app", "phalanx.scheduler.cycle")


def imported(module: str) -> set[str]:
    """Return the heavy modules that a module imports."""
    text = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return set(done.stdout.split()) & set(HEAVY)


def test_main_and_completion_import_no_heavy_module() -> None:
    assert imported("phalanx.cli.main") == set()


def test_each_process_of_up_imports_only_its_own_modules() -> None:
    assert imported("phalanx.cli.up") <= {"asyncio"}
    assert imported("phalanx.cli.up_server") == {"asyncio", "cryptography", "phalanx.server.app"}
    assert {"numpy", "phalanx.scheduler.cycle"} <= imported("phalanx.cli.up_components")
