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

from msgspec import Meta, Struct

from phalanx.sim.workloads.field_errors import (
    FieldError,
    InvalidJson,
    JsonObject,
    Step,
    convert_value,
    find_json_line,
    load_json,
)
from phalanx.sim.workloads.workload import (
    MAX_SECONDS,
    NO_RUN_TIME,
    InvalidTrace,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_equal_nodes,
    build_workload,
    shorten,
)

_DELAY, _MAX_MACHINES = "delay", 1_000_000
#: The fields of the format. Those that no simulation needs are not read; others are unknown.
_FILE_FIELDS = frozenset({"command", "date", "description", "jobs", "nb_res", "profiles"})
_JOB_FIELDS = frozenset({"extra_data", "id", "profile", "res", "subtime", "user", "walltime"})
#: The fields of a profile of the type `delay`.
_PROFILE_FIELDS = frozenset({"command", "delay", "extra_data", "np", "ret", "runtime", "type"})
Machines = Annotated[int, Meta(ge=1, le=_MAX_MACHINES)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]


class BatsimJob(Struct, frozen=True):
    """A job."""

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
    return _BatsimReader(trace).read()


class _BatsimReader:
    """Reads one workload."""

    def __init__(self, trace: TraceFile) -> None:
        self._trace, self._text = trace, "\n".join(trace.lines)
        #: The profiles that jobs have, or what is wrong with them.
        self._profiles: dict[str, BatsimProfile | FieldError] = {}

    def read(self) -> TraceWorkload:
        trace = self._trace
        try:
            # A lenient reader skips a job whose time is NaN.
            fields = load_json(self._text, allow_constants=True)
            found = convert_value(fields, BatsimFile)
            self._check_fields(fields, _FILE_FIELDS)
        except InvalidJson as error:
            raise InvalidTrace(f"{trace.place(error.line)}: {error}") from None
        except FieldError as error:
            line = find_json_line(self._text, error.steps)
            raise InvalidTrace(f"{trace.place(line)}: {error}") from None
        jobs = list[TraceJob]()
        for number, row in enumerate(found.jobs):
            try:
                job = self._read_job(row, found.profiles, "jobs", number)
            except FieldError as error:
                self._reject(error)
                continue
            if job.run_time > 0:
                jobs.append(job)
            else:
                trace.skipped[NO_RUN_TIME] += 1
        nodes = build_equal_nodes(found.nb_res, {"cpu": "1"}) if found.nb_res else ()
        return build_workload(trace, jobs, nodes=nodes)

    def _read_job(self, row: Any, profiles: Mapping[str, Any], *steps: Step) -> TraceJob:
        """Read a job. Raises FieldError."""
        job = convert_value(row, BatsimJob, *steps)
        self._check_fields(row, _JOB_FIELDS, *steps)
        if job.profile not in profiles:
            reason = f'there is no profile "{shorten(job.profile)}"'
            raise FieldError((*steps, "profile"), reason)
        if job.profile not in self._profiles:
            self._profiles[job.profile] = self._read_profile(profiles[job.profile], job.profile)
        profile = self._profiles[job.profile]
        if isinstance(profile, FieldError):
            raise FieldError(profile.steps, profile.reason)
        if profile.delay is None:
            reason = (
                f'the profile "{job.profile}" has the type "{shorten(profile.type)}"; only '
                f'profiles of the type "{_DELAY}" are simulated'
            )
            raise FieldError((*steps, "profile"), reason)
        has_limit = job.walltime > 0
        return TraceJob(
            job.subtime,
            min(profile.delay, job.walltime) if has_limit else profile.delay,
            {"cpu": "1"},
            job.res,
            estimate=job.walltime if has_limit else None,
            owner=str(job.user),
        )

    def _read_profile(self, row: Any, name: str) -> BatsimProfile | FieldError:
        """Read a profile; one of another type has no delay."""
        steps = ("profiles", name)
        try:
            profile = convert_value(row, BatsimProfile, *steps)
            if profile.type != _DELAY:
                return BatsimProfile(profile.type)
            self._check_fields(row, _PROFILE_FIELDS, *steps)
        except FieldError as error:
            return error
        return FieldError((*steps, "delay"), "is missing") if profile.delay is None else profile

    def _check_fields(self, found: JsonObject, known: frozenset[str], *steps: Step) -> None:
        """Reject unknown fields. Raises FieldError for one that exists twice."""
        if found.duplicate:
            raise FieldError((*steps, found.duplicate), "exists twice")
        for name in found:
            if name not in known:
                self._reject(FieldError((*steps, name), "unknown field"))

    def _reject(self, error: FieldError) -> None:
        """Refuse a field, or count it if the reader is lenient; to find its line takes time."""
        line = None if self._trace.is_lenient else find_json_line(self._text, error.steps)
        counted_as = "unknown field" if error.is_unknown else "line cannot be read"
        self._trace.reject(line, str(error), counted_as=counted_as)
