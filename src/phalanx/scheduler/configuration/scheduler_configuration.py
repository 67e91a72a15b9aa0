"""Parses a KubeSchedulerConfiguration into profiles.

    apiVersion: kubescheduler.config.k8s.io/v1
    kind: KubeSchedulerConfiguration
    profiles:
    - schedulerName: packer
      pluginConfig:
      - name: NodeResourcesFit
        args: {scoringStrategy: {type: MostAllocated}}

`parse_configuration` takes the parsed YAML and returns the profiles, or every cause for which the
file is invalid; it never raises and never applies a part of a file. Fields that are accepted and
have no effect are noted. Reads no files (`cli/scheduler_configuration.py` does) and loads no
plugins: out-of-tree plugins are passed in.

Decoding is strict: an unknown field or a value of another type becomes a cause at its path; a null
counts as absent. Whether values make sense is checked by rules afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.errors import Cause, Causes, invalid, prefix_causes, required
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
from phalanx.scheduler.configuration.plugin_selection import (
    Plugins,
    PluginSet,
    build_policy,
    plugins_rules,
)
from phalanx.scheduler.plugins.arguments import Int32, not_supported, unknown_field
from phalanx.scheduler.plugins.plugin import Plugin, PluginSupport
from phalanx.scheduler.plugins.registry import PluginRegistry, build_registry
from phalanx.scheduler.policy import DEFAULT_BACKOFF, BackOff, Profiles, SchedulerPolicy

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"
_ALL_NODES = "has no effect: all nodes are always considered"
_ONE_THREAD = "has no effect: every decision evaluates all nodes at once"

_MSGSPEC_ERROR = re.compile(
    r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL
)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_TYPE_NAMES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "a list",
    "object": "an object",
    "null": "null",
}

T = TypeVar("T")


# ---- fields --------------------------------------------------------------------------------------


class _ConfigurationPart(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The base of an object of the file."""


class LeaderElectionConfiguration(_ConfigurationPart, frozen=True):
    """Leader election of `phalanx scheduler`."""

    leader_elect: bool = True
    lease_duration: str = "15s"
    renew_deadline: str = "10s"
    retry_period: str = "2s"
    resource_lock: str = "leases"
    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"


class ClientConnectionConfiguration(_ConfigurationPart, frozen=True):
    """The connection to the API server; checked and without effect."""

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
    """What a file configures, and a note for each field that has no effect."""

    profiles: Profiles
    leader_election: LeaderElectionConfiguration
    client_connection: ClientConnectionConfiguration
    notes: tuple[str, ...] = ()


# ---- rules ---------------------------------------------------------------------------------------


def _check_profile_names(new: Any, old: Any) -> Causes:
    """A single profile may be nameless; several must have names."""
    if len(new) < 2:
        return ()
    message = "several profiles need different names"
    unnamed = [at for at, profile in enumerate(new) if not profile.get("schedulerName")]
    return [required(f"[{at}].schedulerName", message) for at in unnamed]


def _check_backoff(new: Any, old: Any) -> Causes:
    initial = new.get("podInitialBackoffSeconds", int(DEFAULT_BACKOFF.initial_seconds))
    maximum = new.get("podMaxBackoffSeconds", int(DEFAULT_BACKOFF.max_seconds))
    if maximum == 0 or maximum >= initial:
        return ()
    detail = "must be 0 (no back-off) or not less than podInitialBackoffSeconds"
    return [invalid("podMaxBackoffSeconds", maximum, detail)]


def _duration_faults(value: str) -> list[str]:
    return [] if FORMATS["duration"](value) else ["must be a duration such as 15s"]


_DURATION = optional(string_format(_duration_faults))
_PERCENTAGES = (
    ("percentageOfNodesToScore", optional(in_range(0, 100))),
    ("percentageOfPlacementsToScore", optional(in_range(0, 100))),
)


def _configuration_rules(registry: PluginRegistry) -> Check:
    with_arguments = [plugin.name for plugin in registry if plugin.arguments is not None]
    plugin_config = all_of(
        each(struct(("name", mandatory(one_of(*with_arguments))))), unique_field("name")
    )
    profile = struct(
        ("plugins", optional(plugins_rules(registry))),
        ("pluginConfig", optional(plugin_config)),
        *_PERCENTAGES,
    )
    leader_election = struct(
        *((field, _DURATION) for field in ("leaseDuration", "renewDeadline", "retryPeriod"))
    )
    return all_of(
        struct(
            ("apiVersion", mandatory(one_of(API_VERSION))),
            ("kind", mandatory(one_of(KIND))),
            ("parallelism", optional(minimum(1))),
            *_PERCENTAGES,
            ("podInitialBackoffSeconds", optional(minimum(1))),
            ("podMaxBackoffSeconds", optional(minimum(0))),
            (
                "profiles",
                optional(
                    all_of(each(profile), _check_profile_names, unique_field("schedulerName"))
                ),
            ),
            ("extenders", not_supported("a scheduling decision calls no other service")),
            ("leaderElection", optional(leader_election)),
        ),
        _check_backoff,
    )


# ---- parsing -------------------------------------------------------------------------------------


def parse_configuration(
    found: object, plugins: Iterable[Plugin] = ()
) -> SchedulerConfiguration | list[Cause]:
    """Parse what a file holds, or return every cause for which it is invalid.

    `plugins` are the out-of-tree plugins that the file may name.
    """
    try:
        fields = drop_nulls(found)
    except RecursionError:
        return [invalid("", "…", "contains itself")]
    file = decode_strictly(fields, _ConfigurationFile)
    if isinstance(file, list):
        return file
    registry = build_registry(plugins)
    if causes := _configuration_rules(registry)(fields, CREATED):
        return list(causes)
    policies: dict[str, SchedulerPolicy] = {}
    wrong: list[Cause] = []
    for at, profile in enumerate(file.profiles or (_Profile(),)):
        configured = _configure_plugins(registry, profile.plugin_config)
        if isinstance(configured, list):
            wrong += prefix_causes(f"profiles[{at}]", configured)
        else:
            name = profile.scheduler_name or DEFAULT_SCHEDULER
            policies[name] = build_policy(configured, profile.plugins)
    if wrong:
        return wrong
    back_off = BackOff(file.pod_initial_backoff_seconds, file.pod_max_backoff_seconds)
    return SchedulerConfiguration(
        Profiles(policies, back_off, configuration=fields),
        file.leader_election,
        file.client_connection,
        notes=tuple(_notes(file, registry)),
    )


def _configure_plugins(
    registry: PluginRegistry, configs: tuple[_PluginConfig, ...]
) -> PluginRegistry | list[Cause]:
    """The registry with the arguments of a profile, or every cause for which they are invalid."""
    by_name = {plugin.name: plugin for plugin in registry}
    causes: list[Cause] = []
    for at, config in enumerate(configs):
        found = _configure_plugin(by_name[config.name], config.args)
        if isinstance(found, Plugin):
            by_name[config.name] = found
        else:
            causes += prefix_causes(f"pluginConfig[{at}].args", found)
    if causes:
        return causes
    return replace(
        registry,
        in_tree=tuple(by_name[plugin.name] for plugin in registry.in_tree),
        out_of_tree=tuple(by_name[plugin.name] for plugin in registry.out_of_tree),
    )


def _configure_plugin(plugin: Plugin, args: dict[str, Any]) -> Plugin | list[Cause]:
    assert plugin.arguments is not None
    decoded = decode_strictly(args, plugin.arguments.type)
    if isinstance(decoded, list):
        return decoded
    version = struct(
        ("kind", optional(one_of(f"{plugin.name}Args"))),
        ("apiVersion", optional(one_of(API_VERSION))),
    )
    if causes := [*version(args, CREATED), *plugin.arguments.rules(args, CREATED)]:
        return causes
    try:
        return plugin.configure(decoded)
    except ValueError as error:
        return [Cause("", "FieldValueInvalid", str(error))]
    except Exception as error:
        # Out-of-tree code: name the plugin instead of failing with a traceback.
        text = f"plugin {plugin.name} failed: {type(error).__name__}: {error}"
        return [Cause("", "FieldValueInvalid", text)]


def _notes(file: _ConfigurationFile, registry: PluginRegistry) -> Iterator[str]:
    """A note for each field that is accepted and has no effect."""
    if file.parallelism is not None:
        yield f"parallelism {_ONE_THREAD}"
    if file.percentage_of_nodes_to_score is not None:
        yield f"percentageOfNodesToScore {_ALL_NODES}"
    for at, profile in enumerate(file.profiles):
        if profile.percentage_of_nodes_to_score is not None:
            yield f"profiles[{at}].percentageOfNodesToScore {_ALL_NODES}"
        sets: list[PluginSet] = list(asdict(profile.plugins).values())
        disabled = {one.name for plugin_set in sets for one in plugin_set.disabled}
        for plugin in registry:
            if plugin.support is PluginSupport.ALWAYS_ON and plugin.name in disabled:
                yield f"profiles[{at}].plugins: {plugin.name} is always on"


# ---- decoding ------------------------------------------------------------------------------------


def decode_strictly(found: object, expected: type[T]) -> T | list[Cause]:
    """Convert a value to a type, or return the first cause why that fails."""
    try:
        return msgspec.convert(found, expected)
    except msgspec.ValidationError as error:
        return [_to_cause(str(error))]


def drop_nulls(found: Any) -> Any:
    """Remove fields that are null, and replace characters that are not valid Unicode."""
    if isinstance(found, dict):
        return {key: drop_nulls(value) for key, value in found.items() if value is not None}
    if isinstance(found, list):
        return [drop_nulls(item) for item in found]
    return found.encode(errors="replace").decode() if isinstance(found, str) else found


def _to_cause(error: str) -> Cause:
    parts = _MSGSPEC_ERROR.fullmatch(error)
    assert parts is not None
    what, path = parts["what"], parts["path"] or ""
    if parts["key"]:
        return Cause(path, "FieldValueTypeInvalid", "every key must be a string")
    if unknown := _UNKNOWN.fullmatch(what):
        return unknown_field(f"{path}.{unknown[1]}".removeprefix("."))
    text = re.sub(r"`(.*?)`", _type_name, what)
    return Cause(path, "FieldValueTypeInvalid", text[0].lower() + text[1:])


def _type_name(names: re.Match[str]) -> str:
    name = names[1].removesuffix(" | null")
    return _TYPE_NAMES.get(name, name)
