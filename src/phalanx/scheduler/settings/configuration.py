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
Does not read files; `cli/configuration.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from phalanx.api.causes import Causes, invalid, required, under
from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.errors import Cause
from phalanx.api.formats import FORMATS
from phalanx.api.rules.checks import (
    CREATED,
    Check,
    at_least,
    between,
    each,
    every,
    given,
    needed,
    one_of,
    struct,
    text,
    unique_field,
)
from phalanx.scheduler.backoff import USUAL, BackOff
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.settings import arguments
from phalanx.scheduler.settings.arguments import GROUP, Arguments, not_supported
from phalanx.scheduler.settings.composition import compose
from phalanx.scheduler.settings.plugins import (
    ALWAYS_ON,
    PLUGINS_RULES,
    Plugins,
    PluginSet,
)
from phalanx.scheduler.settings.profiles import Profiles
from phalanx.scheduler.settings.strict import Whole, cleaned, strictly

KIND = "KubeSchedulerConfiguration"
_ALL_NODES = "has no effect: all nodes are always considered"
_ONE_THREAD = "has no effect: a decision looks at all nodes at once"


# ---------------------------------------------------------------------------------- what it says


class _Part(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of the file."""


class LeaderElection(_Part, frozen=True):
    """How one of several equal schedulers is chosen; of use to a scheduler on its own."""

    leader_elect: bool = True
    lease_duration: str = "15s"
    renew_deadline: str = "10s"
    retry_period: str = "2s"
    resource_lock: str = "leases"
    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"


class ClientConnection(_Part, frozen=True):
    """How to reach the API server; of use to a scheduler on its own."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = ""
    qps: float = 50
    burst: Whole = 100


class _PluginConfig(_Part, frozen=True):
    name: str = ""
    args: dict[str, Any] = {}


class _Profile(_Part, frozen=True):
    scheduler_name: str = DEFAULT_SCHEDULER
    plugins: Plugins = Plugins()
    plugin_config: tuple[_PluginConfig, ...] = ()
    percentage_of_nodes_to_score: Whole | None = None
    percentage_of_placements_to_score: Whole | None = None


class _File(_Part, frozen=True):
    api_version: str = ""
    kind: str = ""
    profiles: tuple[_Profile, ...] = ()
    pod_initial_backoff_seconds: Whole = int(USUAL.first)
    pod_max_backoff_seconds: Whole = int(USUAL.longest)
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    parallelism: Whole | None = None
    percentage_of_nodes_to_score: Whole | None = None
    percentage_of_placements_to_score: Whole | None = None
    extenders: tuple[dict[str, Any], ...] = ()
    delay_cache_until_active: bool = False
    enable_profiling: bool = False
    enable_contention_profiling: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a file asks for, and a sentence for everything in it that makes no difference."""

    profiles: Profiles
    leader_election: LeaderElection
    client_connection: ClientConnection
    notes: tuple[str, ...] = ()


# --------------------------------------------------------------------------------- what it may not


def _names(new: Any, old: Any) -> Causes:
    """One profile may go without a name, several must be told apart."""
    if len(new) < 2:
        return ()
    why = "several profiles are told apart by their names"
    nameless = [at for at, profile in enumerate(new) if not profile.get("schedulerName")]
    return [required(f"[{at}].schedulerName", why) for at in nameless]


def _pauses(new: Any, old: Any) -> Causes:
    first = new.get("podInitialBackoffSeconds", int(USUAL.first))
    longest = new.get("podMaxBackoffSeconds", int(USUAL.longest))
    if longest == 0 or longest >= first:
        return ()
    detail = "must be 0, for no pauses, or not less than podInitialBackoffSeconds"
    return [invalid("podMaxBackoffSeconds", longest, detail)]


def _duration_faults(value: str) -> list[str]:
    return [] if FORMATS["duration"](value) else ["must be a duration such as 15s"]


_DURATION = given(text(_duration_faults))
_PERCENTAGES = (
    ("percentageOfNodesToScore", given(between(0, 100))),
    ("percentageOfPlacementsToScore", given(between(0, 100))),
)
_PROFILE = struct(
    ("plugins", given(PLUGINS_RULES)),
    (
        "pluginConfig",
        given(
            every(each(struct(("name", needed(one_of(*arguments.NAMES))))), unique_field("name"))
        ),
    ),
    *_PERCENTAGES,
)
_RULES: Check = every(
    struct(
        ("apiVersion", needed(one_of(GROUP))),
        ("kind", needed(one_of(KIND))),
        ("parallelism", given(at_least(1))),
        *_PERCENTAGES,
        ("podInitialBackoffSeconds", given(at_least(1))),
        ("podMaxBackoffSeconds", given(at_least(0))),
        ("profiles", given(every(each(_PROFILE), _names, unique_field("schedulerName")))),
        ("extenders", not_supported("nobody else is asked while deciding")),
        (
            "leaderElection",
            given(
                struct(*((f, _DURATION) for f in ("leaseDuration", "renewDeadline", "retryPeriod")))
            ),
        ),
    ),
    _pauses,
)


# ------------------------------------------------------------------------------------ reading it


def read(found: object) -> Configuration | list[Cause]:
    """What a file holds as a configuration, or everything that is wrong with it."""
    try:
        said = cleaned(found)
    except RecursionError:
        return [invalid("", "…", "is nested without end")]
    file = strictly(said, _File)
    if isinstance(file, list):
        return file
    if causes := _RULES(said, CREATED):
        return list(causes)
    policies: dict[str, Policy] = {}
    wrong: list[Cause] = []
    for at, profile in enumerate(file.profiles or (_Profile(),)):
        told = _arguments(profile)
        if isinstance(told, list):
            wrong += under(f"profiles[{at}]", told)
        else:
            policies[profile.scheduler_name or DEFAULT_SCHEDULER] = compose(profile.plugins, told)
    if wrong:
        return wrong
    pauses = BackOff(file.pod_initial_backoff_seconds, file.pod_max_backoff_seconds)
    return Configuration(
        Profiles(policies, pauses, said=said), file.leader_election, file.client_connection,
        tuple(_notes(file)),
    )  # fmt: skip


def _arguments(profile: _Profile) -> Arguments | list[Cause]:
    """What the plugins of a profile are told, or what is wrong with that."""
    by_name = {one.name: one.args for one in profile.plugin_config}
    place = {one.name: f"pluginConfig[{at}].args" for at, one in enumerate(profile.plugin_config)}
    told = strictly(by_name, Arguments)
    if isinstance(told, list):
        return [_placed(cause, place) for cause in told]
    wrong = [
        cause
        for name, args in by_name.items()
        for cause in under(place[name], arguments.faults(name, args))
    ]
    return wrong or told


def _placed(cause: Cause, place: Mapping[str, str]) -> Cause:
    """A cause below the name of a plugin, told where the plugin's arguments are."""
    name, dot, rest = cause.field.partition(".")
    return replace(cause, field=f"{place[name]}{dot}{rest}")


def _notes(file: _File) -> Iterator[str]:
    """A sentence for everything that is accepted and makes no difference."""
    if file.parallelism is not None:
        yield f"parallelism {_ONE_THREAD}"
    if file.percentage_of_nodes_to_score is not None:
        yield f"percentageOfNodesToScore {_ALL_NODES}"
    for at, profile in enumerate(file.profiles):
        if profile.percentage_of_nodes_to_score is not None:
            yield f"profiles[{at}].percentageOfNodesToScore {_ALL_NODES}"
        for name in _switched_off(profile.plugins):
            yield f"profiles[{at}].plugins: {name} is always on"


def _switched_off(plugins: Plugins) -> list[str]:
    """The plugins that are disabled by name and cannot be."""
    sets: list[PluginSet] = list(asdict(plugins).values())
    named = {choice.name for one in sets for choice in one.disabled}
    return [name for name in ALWAYS_ON if name in named]
