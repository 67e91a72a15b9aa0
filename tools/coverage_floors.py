"""Compare branch coverage by package with its floor.

    python -m tools.coverage_floors .coverage/report.json

Reads the report that `coverage json` writes (`make coverage` runs both), prints one line per
package and exits with 1 if a package is below its floor.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

#: Per cent of lines and branches that the suite must reach.
DEFAULT_FLOOR = 90.0
FLOORS = {"api": 95.0, "scheduler": 95.0}


class PackageCoverage(NamedTuple):
    """The covered and the existing lines and branches of one package."""

    package: str
    covered: int
    total: int

    @property
    def percent(self) -> float:
        """The covered share of lines and branches."""
        return 100.0 * self.covered / self.total if self.total else 100.0

    @property
    def floor(self) -> float:
        """The share that is required."""
        return FLOORS.get(self.package, DEFAULT_FLOOR)


def read_packages(report: dict[str, Any]) -> list[PackageCoverage]:
    """Sum up the files of a coverage report by the package directly below `phalanx`."""
    covered: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    for file, details in report["files"].items():
        parts = Path(file).parts
        inside = parts[parts.index("phalanx") + 1 :]
        package, summary = inside[0] if len(inside) > 1 else "(top level)", details["summary"]
        covered[package] += summary["covered_lines"] + summary["covered_branches"]
        total[package] += summary["num_statements"] + summary["num_branches"]
    return [PackageCoverage(name, covered[name], total[name]) for name in sorted(total)]


def main(arguments: list[str]) -> int:
    """Print the table; return 1 if a package is below its floor."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    packages = read_packages(json.loads(Path(arguments[0]).read_text()))
    for row in packages:
        mark = "" if row.percent >= row.floor else "  below the floor"
        print(f"{row.package:<14}{row.percent:6.1f} %   floor {row.floor:.0f} %{mark}")
    return int(any(row.percent < row.floor for row in packages))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
