"""Scheduler profiles as they stand in a configuration file, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import json

from phalanx.api.core import NodeAffinity, NodeSelector, NodeTerm, PreferredNodeTerm
from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)
from phalanx.scheduler.policy import SchedulerPolicy
from tests.scheduler.oracle_settings import FILTERS, WEIGHTS
from tests.scheduler.strategies import KEYS, NEEDS

Profile = dict[str, Any]
RESOURCES = ["cpu", "memory", "example.com/gpu", "example.com/fpga", "ephemeral-storage", "pods"]


def configuration_file(*profiles: Profile, **fields: Any) -> dict[str, Any]:
    """Build a configuration file with some profiles."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": list(profiles),
        **fields,
    }


def load_configuration(*profiles: Profile, **fields: Any) -> SchedulerConfiguration:
    """Parse a valid configuration file."""
    found = parse_configuration(configuration_file(*profiles, **fields))
    assert isinstance(found, SchedulerConfiguration), found
    return found


def policy(profile: Profile) -> SchedulerPolicy:
    """The policy of a single profile."""
    (found,) = load_configuration(profile).profiles.policies.values()
    return found


resources = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(RESOURCES), "weight": st.integers(0, 100)}),
    unique_by=lambda one: one["name"],
)


@st.composite
def shapes(draw: st.DrawFn) -> list[dict[str, int]]:
    utilizations = sorted(draw(st.sets(st.integers(0, 100), min_size=1, max_size=4)))
    return [{"utilization": one, "score": draw(st.integers(0, 10))} for one in utilizations]


strategies = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["LeastAllocated", "MostAllocated"]), "resources": resources}
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("RequestedToCapacityRatio"),
            "resources": resources,
            "requestedToCapacityRatio": st.fixed_dictionaries({"shape": shapes()}),
        }
    ),
)
balances = st.lists(st.sampled_from(RESOURCES), unique=True).map(
    lambda names: {"resources": [{"name": name, "weight": 1} for name in names]}
)
terms = st.builds(NodeTerm, st.lists(st.sampled_from(NEEDS), max_size=2).map(tuple))
added = st.builds(
    NodeAffinity,
    st.none() | st.builds(NodeSelector, st.lists(terms, min_size=1, max_size=2).map(tuple)),
    st.lists(st.builds(PreferredNodeTerm, st.integers(1, 100), terms), max_size=2).map(tuple),
).map(lambda affinity: {"addedAffinity": json.decode(json.encode(affinity))})
defaults = st.lists(
    st.fixed_dictionaries(
        {
            "topologyKey": st.sampled_from(KEYS),
            "whenUnsatisfiable": st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
            "maxSkew": st.integers(1, 3),
        }
    ),
    max_size=2,
    unique_by=lambda one: one["topologyKey"],
).map(lambda listed: {"defaultingType": "List", "defaultConstraints": listed})
affinities = st.fixed_dictionaries(
    {
        "hardPodAffinityWeight": st.integers(0, 100),
        "ignorePreferredTermsOfExistingPods": st.booleans(),
    }
)
extended = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from([name for name in RESOURCES if "/" in name]),
            "weight": st.integers(0, 100),
        }
    ),
    unique_by=lambda one: one["name"],
)
ARGUMENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "NodeResourcesFit": strategies.map(lambda strategy: {"scoringStrategy": strategy}),
    "NodeResourcesBalancedAllocation": balances,
    "ExtendedResourcePacking": extended.map(lambda listed: {"resources": listed}),
    "ExtendedResourceAvoidance": extended.map(
        lambda listed: {"ignoredResources": [one["name"] for one in listed]}
    ),
    "NodeAffinity": added,
    "PodTopologySpread": defaults,
    "InterPodAffinity": affinities,
}


def names(of: list[str]) -> st.SearchStrategy[list[dict[str, str]]]:
    found = st.lists(st.sampled_from(of), unique=True, max_size=3)
    return found.map(lambda chosen: [{"name": name} for name in chosen])


weights = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(list(WEIGHTS)), "weight": st.integers(0, 5)}),
    unique_by=lambda one: one["name"],
    max_size=3,
)
plugins = st.fixed_dictionaries(
    {},
    optional={
        "filter": st.fixed_dictionaries({"disabled": names(FILTERS)}),
        "score": st.fixed_dictionaries({"disabled": names(["*", *WEIGHTS]), "enabled": weights}),
        "multiPoint": st.fixed_dictionaries({"disabled": names(FILTERS), "enabled": weights}),
    },
)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """A profile with any choice of plugins and arguments."""
    configured = draw(st.lists(st.sampled_from(list(ARGUMENTS)), unique=True))
    config = [{"name": name, "args": draw(ARGUMENTS[name])} for name in configured]
    return {"plugins": draw(plugins), "pluginConfig": config}
