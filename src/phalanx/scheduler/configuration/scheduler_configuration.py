"""Configuration: what is wanted of the scheduler, in the form of a KubeSchedulerConfiguration.

    apiVersion: kubescheduler.config.k8s.io/v1
    kind: KubeSchedulerConfiguration
    profiles:
    - schedulerName: packer
      pluginConfig:
      - name: NodeResourcesFit
        args: {scoringStrategy: {type: MostAllocated}}

`read` takes what a YAML file holds and gives the profiles that it asks for, or what is wrong with
it: never an exception, never half of it. What is accepted and makes no difference here is noted.
Does not read files; `cli/scheduler_configuration.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.errors import Cause
from phalanx.api.field_errors import Causes, invalid, prefix_causes, required
from phalanx.api.formats import FORMATS
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    all_of,
    each,
    in_range,
    mandatory,
    minimum,
    one_of,
    optional,
    string_format,
    struct,
    unique_field,
)
from phalanx.scheduler.backoff import DEFAULT_BACKOFF, BackOff
from phalanx.scheduler.configuration import plugin_args as arguments
from phalanx.scheduler.configuration.plugin_args import API_VERSION, PluginArgs, not_supported
from phalanx.scheduler.configuration.profiles import (
    ALWAYS_ON_PLUGIN_NAMES,
    PLUGINS_RULES,
    Plugins,
    PluginSet,
    Profiles,
    build_policy,
)
from phalanx.scheduler.configuration.strict_decoding import Int32, decode_strictly, drop_nulls
from phalanx.scheduler.policy import SchedulerPolicy

KIND = "KubeSchedulerConfiguration"
_ALL_NODES = "has no effect: all nodes are always considered"
_ONE_THREAD = "has no effect: a decision looks at all nodes at once"


# ---------------------------------------------------------------------------------- what it says


class _ConfigurationPart(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of the file."""


class LeaderElectionConfiguration(_ConfigurationPart, frozen=True):
    """How one of several equal schedulers is chosen; of use to a scheduler on its own."""

    leader_elect: bool = True
    lease_duration: str = "15s"
    renew_deadline: str = "10s"
    retry_period: str = "2s"
    resource_lock: str = "leases"
    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"


class ClientConnectionConfiguration(_ConfigurationPart, frozen=True):
    """How to reach the API server; of use to a scheduler on its own."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = ""
    qps: float = 50
    burst: Int32 = 100


class _PluginConfig(_ConfigurationPart, frozen=True):
    name: str = ""
    args: dict[str, Any] = {}


class _Profile(_ConfigurationPart, frozen=True):
    scheduler_name: str = DEFAULT_SCHEDULER
    plugins: Plugins = Plugins()
    plugin_config: tuple[_PluginConfig, ...] = ()
    percentage_of_nodes_to_score: Int32 | None = None
    percentage_of_placements_to_score: Int32 | None = None


class _ConfigurationFile(_ConfigurationPart, frozen=True):
    api_version: str = ""
    kind: str = ""
    profiles: tuple[_Profile, ...] = ()
    pod_initial_backoff_seconds: Int32 = int(DEFAULT_BACKOFF.initial_seconds)
    pod_max_backoff_seconds: Int32 = int(DEFAULT_BACKOFF.max_seconds)
    leader_election: LeaderElectionConfiguration = LeaderElectionConfiguration()
    client_connection: ClientConnectionConfiguration = ClientConnectionConfiguration()
    parallelism: Int32 | None = None
    percentage_of_nodes_to_score: Int32 | None = None
    percentage_of_placements_to_score: Int32 | None = None
    extenders: tuple[dict[str, Any], ...] = ()
    delay_cache_until_active: bool = False
    enable_profiling: bool = False
    enable_contention_profiling: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerConfiguration:
    """What a file asks for, and a sentence for everything in it that makes no difference."""

    profiles: Profiles
    leader_election: LeaderElectionConfiguration
    client_connection: ClientConnectionConfiguration
    notes: tuple[str, ...] = ()


# --------------------------------------------------------------------------------- what it may not


def _check_profile_names(new: Any, old: Any) -> Causes:
    """One profile may go without a name, several must be told apart."""
    if len(new) < 2:
        return ()
    why = "several profiles are told apart by their names"
    nameless = [at for at, profile in enumerate(new) if not profile.get("schedulerName")]
    return [required(f"[{at}].schedulerName", why) for at in nameless]


def _check_backoff(new: Any, old: Any) -> Causes:
    first = new.get("podInitialBackoffSeconds", int(DEFAULT_BACKOFF.initial_seconds))
    longest = new.get("podMaxBackoffSeconds", int(DEFAULT_BACKOFF.max_seconds))
    if longest == 0 or longest >= first:
        return ()
    detail = "must be 0, for no pauses, or not less than podInitialBackoffSeconds"
    return [invalid("podMaxBackoffSeconds", longest, detail)]


def _duration_faults(value: str) -> list[str]:
    return [] if FORMATS["duration"](value) else ["must be a duration such as 15s"]


_DURATION = optional(string_format(_duration_faults))
_PERCENTAGES = (
    ("percentageOfNodesToScore", optional(in_range(0, 100))),
    ("percentageOfPlacementsToScore", optional(in_range(0, 100))),
)
_PROFILE = struct(
    ("plugins", optional(PLUGINS_RULES)),
    (
        "pluginConfig",
        optional(
            all_of(
                each(struct(("name", mandatory(one_of(*arguments.CONFIGURABLE_PLUGINS))))),
                unique_field("name"),
            )
        ),
    ),
    *_PERCENTAGES,
)
_RULES: Check = all_of(
    struct(
        ("apiVersion", mandatory(one_of(API_VERSION))),
        ("kind", mandatory(one_of(KIND))),
        ("parallelism", optional(minimum(1))),
        *_PERCENTAGES,
        ("podInitialBackoffSeconds", optional(minimum(1))),
        ("podMaxBackoffSeconds", optional(minimum(0))),
        (
            "profiles",
            optional(all_of(each(_PROFILE), _check_profile_names, unique_field("schedulerName"))),
        ),
        ("extenders", not_supported("nobody else is asked while deciding")),
        (
            "leaderElection",
            optional(
                struct(*((f, _DURATION) for f in ("leaseDuration", "renewDeadline", "retryPeriod")))
            ),
        ),
    ),
    _check_backoff,
)


# ------------------------------------------------------------------------------------ reading it


def parse_configuration(found: object) -> SchedulerConfiguration | list[Cause]:
    """What a file holds as a configuration, or everything that is wrong with it."""
    try:
        said = drop_nulls(found)
    except RecursionError:
        return [invalid("", "…", "is nested without end")]
    file = decode_strictly(said, _ConfigurationFile)
    if isinstance(file, list):
        return file
    if causes := _RULES(said, CREATED):
        return list(causes)
    policies: dict[str, SchedulerPolicy] = {}
    wrong: list[Cause] = []
    for at, profile in enumerate(file.profiles or (_Profile(),)):
        told = _parse_plugin_args(profile)
        if isinstance(told, list):
            wrong += prefix_causes(f"profiles[{at}]", told)
        else:
            policies[profile.scheduler_name or DEFAULT_SCHEDULER] = build_policy(
                profile.plugins, told
            )
    if wrong:
        return wrong
    pauses = BackOff(file.pod_initial_backoff_seconds, file.pod_max_backoff_seconds)
    return SchedulerConfiguration(
        Profiles(policies, pauses, configuration=said),
        file.leader_election,
        file.client_connection,
        tuple(_notes(file)),
    )


def _parse_plugin_args(profile: _Profile) -> PluginArgs | list[Cause]:
    """What the plugins of a profile are told, or what is wrong with that."""
    by_name = {one.name: one.args for one in profile.plugin_config}
    place = {one.name: f"pluginConfig[{at}].args" for at, one in enumerate(profile.plugin_config)}
    told = decode_strictly(by_name, PluginArgs)
    if isinstance(told, list):
        return [_at_args_path(cause, place) for cause in told]
    wrong = [
        cause
        for name, args in by_name.items()
        for cause in prefix_causes(place[name], arguments.validate_plugin_args(name, args))
    ]
    return wrong or told


def _at_args_path(cause: Cause, paths: Mapping[str, str]) -> Cause:
    """A cause below the name of a plugin, told where the plugin's arguments are."""
    name, dot, rest = cause.field.partition(".")
    return replace(cause, field=f"{paths[name]}{dot}{rest}")


def _notes(file: _ConfigurationFile) -> Iterator[str]:
    """A sentence for everything that is accepted and makes no difference."""
    if file.parallelism is not None:
        yield f"parallelism {_ONE_THREAD}"
    if file.percentage_of_nodes_to_score is not None:
        yield f"percentageOfNodesToScore {_ALL_NODES}"
    for at, profile in enumerate(file.profiles):
        if profile.percentage_of_nodes_to_score is not None:
            yield f"profiles[{at}].percentageOfNodesToScore {_ALL_NODES}"
        for name in _disabled_always_on(profile.plugins):
            yield f"profiles[{at}].plugins: {name} is always on"


def _disabled_always_on(plugins: Plugins) -> list[str]:
    """The plugins that are disabled by name and cannot be."""
    sets: list[PluginSet] = list(asdict(plugins).values())
    named = {choice.name for one in sets for choice in one.disabled}
    return [name for name in ALWAYS_ON_PLUGIN_NAMES if name in named]
