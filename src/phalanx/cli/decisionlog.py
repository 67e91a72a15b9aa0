"""`--decision-log FILE`: the option of those who schedule, and the log that it leads to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from phalanx.controllers.shell.decisionlog import DecisionLog

F = TypeVar("F", bound=Callable[..., Any])


def decision_log_option(command: F) -> F:
    """The option, as `decisions`."""
    return click.option(
        "--decision-log",
        "decisions",
        type=click.Path(path_type=Path, dir_okay=False, writable=True),
        default=None,
        metavar="FILE",
        help="Where to write what the scheduler sees and decides; see phalanx decisions.",
    )(command)


def check_decision_log(file: Path | None) -> None:
    """Refuse a file that has no folder to be in."""
    if file and not file.absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder for --decision-log {file}")


def decision_log(file: Path | None) -> DecisionLog | None:
    """Where decisions go, if anywhere; who writes none need not load what does."""
    if file is None:
        return None
    from phalanx.controllers.shell.decisionlog import DecisionLog, LogFile, in_thread

    return DecisionLog(in_thread(LogFile(file).write))
