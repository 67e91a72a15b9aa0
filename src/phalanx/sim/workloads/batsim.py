"""Reads workloads of Batsim: JSON with the jobs, their profiles and the number of machines.

    {"nb_res": 32,
     "jobs": [{"id": 1, "subtime": 4.7, "res": 2, "walltime": 399, "profile": "ft"}],
     "profiles": {"ft": {"type": "delay", "delay": 265.8}}}

A job of `res` machines is a gang of one pod per machine, each with all of its machine. `walltime`
is the requested time: the estimate, and the end of a job that runs longer. Only profiles of the
type `delay` are simulated; how long others run depends on a platform that the file does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from phalanx.sim.workloads.workload import (
    MAX_SECONDS,
    NO_RUN_TIME,
    InvalidTrace,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_equal_nodes,
    build_workload,
)
from phalanx.yaml_files import find_line

_DELAY, _MAX_MACHINES = "delay", 1_000_000
#: In larger files a job is named by its number, without its line.
_MAX_SEARCHED = 1 << 20
Machines = Annotated[int, Meta(ge=1, le=_MAX_MACHINES)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]


class BatsimJob(Struct, frozen=True):
    """A job. Fields that are not simulated are ignored, as Batsim itself does."""

    profile: str
    res: Machines
    subtime: Seconds
    #: -1: the job requests no time.
    walltime: Annotated[float, Meta(ge=-1, le=MAX_SECONDS)] = -1.0
    user: str | int = ""


class BatsimProfile(Struct, frozen=True):
    """How long jobs run."""

    type: str
    delay: Seconds | None = None


class BatsimFile(Struct, frozen=True):
    """The file, with jobs and profiles as they are written: a lenient reader skips some."""

    jobs: list[Any]
    profiles: dict[str, Any]
    nb_res: Machines | None = None


def is_batsim(lines: list[str]) -> bool:
    """Whether a file is JSON with fields that only Batsim has; others have `profiles` too."""
    return lines[0].lstrip().startswith("{") and any(
        name in line for line in lines for name in ('"subtime"', '"nb_res"')
    )


def read_batsim(trace: TraceFile) -> TraceWorkload:
    """Read a workload. Raises InvalidTrace."""
    text = "\n".join(trace.lines)
    try:
        found = msgspec.json.decode(text, type=BatsimFile)
    except msgspec.ValidationError as error:
        raise InvalidTrace(f"{trace.name}: {_describe(error)}") from None
    except msgspec.DecodeError as error:
        raise InvalidTrace(f"{trace.name} is not a JSON file: {error}") from None
    except RecursionError:
        raise InvalidTrace(f"{trace.name}: nested too deeply") from None
    jobs = list[TraceJob]()
    for number, row in enumerate(found.jobs):
        try:
            job = _read_job(row, found.profiles)
        except (ValueError, msgspec.ValidationError) as error:
            reason = f"jobs[{number}]: {_describe(error)}"
            # Lines are found slowly, and in no JSON that is indented with tabs.
            is_short = not trace.is_lenient and len(text) <= _MAX_SEARCHED
            line = find_line(text, f"jobs[{number}]") if is_short else None
            trace.reject(line, reason)
            continue
        if job.run_time > 0:
            jobs.append(job)
        else:
            trace.skipped[NO_RUN_TIME] += 1
    nodes = build_equal_nodes(found.nb_res, {"cpu": "1"}) if found.nb_res else ()
    return build_workload(trace, jobs, nodes=nodes)


def _read_job(row: Any, profiles: Mapping[str, Any]) -> TraceJob:
    """Read a job. Raises ValueError or ValidationError with the reason."""
    job = msgspec.convert(row, BatsimJob)
    if job.profile not in profiles:
        raise ValueError(f'there is no profile "{job.profile}"')
    try:
        profile = msgspec.convert(profiles[job.profile], BatsimProfile)
    except msgspec.ValidationError as error:
        raise ValueError(f"profiles.{job.profile}: {_describe(error)}") from None
    if profile.type != _DELAY:
        raise ValueError(
            f'the profile "{job.profile}" has the type "{profile.type}"; only profiles of the type '
            f'"{_DELAY}" are simulated'
        )
    if profile.delay is None:
        raise ValueError(f"profiles.{job.profile}: Object missing required field `delay`")
    has_limit = job.walltime > 0
    return TraceJob(
        job.subtime,
        min(profile.delay, job.walltime) if has_limit else profile.delay,
        {"cpu": "1"},
        job.res,
        estimate=job.walltime if has_limit else None,
        owner=str(job.user),
    )


def _describe(error: Exception) -> str:
    """Describe an error with the field that it is about: `res: Expected `int`, got `str``."""
    reason, _, path = str(error).partition(" - at `$.")
    return f"{path.rstrip('`')}: {reason}" if path else reason
