"""What a command loads before it does anything: most of the time that it takes to start."""

from __future__ import annotations

import subprocess
import sys

#: Modules that cost much, each of which only some commands need.
HEAVY = ("asyncio", "numpy", "cryptography", "phalanx.server.app", "phalanx.scheduler.cycle")


def loaded(module: str) -> set[str]:
    """Which of the heavy modules are there when this one is."""
    text = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return set(done.stdout.split()) & set(HEAVY)


def test_the_list_of_commands_needs_nothing_heavy() -> None:
    assert loaded("phalanx.cli.main") == set()


def test_both_processes_of_a_control_plane_load_their_own_half() -> None:
    assert loaded("phalanx.cli.up") <= {"asyncio"}
    assert loaded("phalanx.cli.up_server") == {"asyncio", "cryptography", "phalanx.server.app"}
    assert {"numpy", "phalanx.scheduler.cycle"} <= loaded("phalanx.cli.up_components")


def test_what_needs_no_cluster_needs_nothing_heavy() -> None:
    assert loaded("phalanx.cli.completion") == set()
