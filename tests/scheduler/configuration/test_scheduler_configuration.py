"""What a KubeSchedulerConfiguration configures, and which files are invalid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.scheduler.cluster.peer_constraints import SYSTEM_DEFAULTS
from phalanx.scheduler.configuration.scheduler_configuration import parse_configuration
from phalanx.scheduler.policy import DEFAULT_POLICY, DEFAULT_PROFILES, BackOff, SchedulerPolicy
from tests.scheduler.configurations import (
    Profile,
    configuration_file,
    load_configuration,
    policy,
    profiles,
)


def weights(one: SchedulerPolicy) -> dict[str, int]:
    return {score.name: score.weight for score in one.scores}


def profile_with_args(plugin: str, **args: Any) -> Profile:
    """A profile with arguments for one plugin."""
    return {"pluginConfig": [{"name": plugin, "args": args}]}


def error_messages(found: object) -> list[str]:
    causes = parse_configuration(found)
    assert isinstance(causes, list), causes
    return [str(cause) for cause in causes]


def error_message(*profiles: Profile, **fields: Any) -> str:
    """The only error of a file."""
    (found,) = error_messages(configuration_file(*profiles, **fields))
    return found


# ---- valid files ---------------------------------------------------------------------------------


def test_empty_file_configures_the_defaults() -> None:
    found = load_configuration()
    assert (found.profiles.back_off, found.profiles.groups) == (DEFAULT_PROFILES.back_off, True)
    ((name, one),) = found.profiles.policies.items()
    assert name == "default-scheduler"
    assert list(one.filters) == list(DEFAULT_POLICY.filters)
    assert weights(one) == weights(DEFAULT_POLICY)
    assert (one.hard_pod_affinity_weight, one.honors_existing_preferences, one.spread_defaults) == (
        1,
        True,
        SYSTEM_DEFAULTS,
    )


def test_file_without_profiles_configures_the_default_scheduler() -> None:
    nothing: tuple[object, ...] = (None, [], [{}])
    for none in nothing:
        assert list(load_configuration(profiles=none).profiles.policies) == ["default-scheduler"]


def test_every_profile_is_a_scheduler() -> None:
    off = {"score": {"disabled": [{"name": "*"}]}}
    found = load_configuration({"schedulerName": "a"}, {"schedulerName": "b", "plugins": off})
    assert [(name, len(weights(one))) for name, one in found.profiles.policies.items()] == [
        ("a", 11),
        ("b", 0),
    ]


def test_back_off_applies_to_all_profiles() -> None:
    found = load_configuration(podInitialBackoffSeconds=2, podMaxBackoffSeconds=60)
    assert found.profiles.back_off == BackOff(2, 60)
    assert load_configuration(podMaxBackoffSeconds=0).profiles.back_off == BackOff(1, 0)


def test_plugin_arguments_reach_the_policy() -> None:
    near = policy(profile_with_args("InterPodAffinity", hardPodAffinityWeight=7,
                       ignorePreferredTermsOfExistingPods=True))  # fmt: skip
    assert (near.hard_pod_affinity_weight, near.honors_existing_preferences) == (7, False)
    rack = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    defaults = policy(
        profile_with_args("PodTopologySpread", defaultingType="List", defaultConstraints=[rack])
    ).spread_defaults
    assert [(s.topology_key, s.max_skew, s.is_hard) for s in defaults.spreads] == [
        ("rack", 2, True)
    ]
    assert defaults.strict
    assert (
        policy(
            profile_with_args("PodTopologySpread", defaultingType="List")
        ).spread_defaults.spreads
        == ()
    )


def test_leader_election_and_client_connection_are_kept() -> None:
    found = load_configuration(
        leaderElection={"leaderElect": False, "leaseDuration": "1m30s"},
        clientConnection={"kubeconfig": "somewhere", "qps": 12.5},
    )
    assert (found.leader_election.leader_elect, found.leader_election.lease_duration) == (
        False,
        "1m30s",
    )
    assert (found.client_connection.kubeconfig, found.client_connection.qps) == ("somewhere", 12.5)


def test_plugins_that_are_not_implemented_may_be_named() -> None:
    names = [{"name": name} for name in ("NodeDeclaredFeatures", "DeferredPodScheduling")]
    for points in ({"multiPoint": {"disabled": names}}, {"filter": {"enabled": names}}):
        found = load_configuration({"plugins": points})
        (one,) = found.profiles.policies.values()
        assert list(one.filters) == list(DEFAULT_POLICY.filters)
        assert found.notes == ()
    assert load_configuration(
        profile_with_args("DefaultPreemption", minCandidateNodesPercentage=20),
        podInitialBackoffSeconds=1,
    ).notes == ()  # fmt: skip


def test_fields_without_effect_are_noted() -> None:
    gates = {"multiPoint": {"disabled": [{"name": "SchedulingGates"}]}}
    found = load_configuration(
        {"percentageOfNodesToScore": 50, "plugins": gates},
        parallelism=4,
        percentageOfNodesToScore=0,
    )
    assert found.notes == (
        "parallelism has no effect: every decision evaluates all nodes at once",
        "percentageOfNodesToScore has no effect: all nodes are always considered",
        "profiles[0].percentageOfNodesToScore has no effect: all nodes are always considered",
        "profiles[0].plugins: SchedulingGates is always on",
    )


# ---- invalid files -------------------------------------------------------------------------------


def test_api_version_and_kind_are_required() -> None:
    assert error_messages({}) == ["apiVersion: Required value", "kind: Required value"]
    assert error_messages(
        {"apiVersion": "kubescheduler.config.k8s.io/v1beta3", "kind": "Policy"}
    ) == [
        'apiVersion: Unsupported value: "kubescheduler.config.k8s.io/v1beta3": '
        'supported values: "kubescheduler.config.k8s.io/v1"',
        'kind: Unsupported value: "Policy": supported values: "KubeSchedulerConfiguration"',
    ]


def test_file_that_contains_itself_is_rejected() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert error_messages(endless) == ['Invalid value: "…": contains itself']


@pytest.mark.parametrize("found", [None, [], "text", 7])
def test_file_must_be_an_object(found: object) -> None:
    (message,) = error_messages(found)
    assert message.startswith("expected an object, got ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"profile": []}, "profile: there is no such field"),
        ({"parallelism": 0}, "parallelism: Invalid value: 0: must be greater than or equal to 1"),
        (
            {"percentageOfNodesToScore": 101},
            "percentageOfNodesToScore: Invalid value: 101: must be between 0 and 100, inclusive",
        ),
        (
            {"podInitialBackoffSeconds": 0},
            "podInitialBackoffSeconds: Invalid value: 0: must be greater than or equal to 1",
        ),
        (
            {"podInitialBackoffSeconds": 20},
            "podMaxBackoffSeconds: Invalid value: 10: must be 0 (no back-off) or not less than "
            "podInitialBackoffSeconds",
        ),
        (
            {"extenders": [{"urlPrefix": "http://x"}]},
            "extenders: Forbidden: is not supported: a scheduling decision calls no other service",
        ),
        (
            {"leaderElection": {"leaseDuration": "soon"}},
            'leaderElection.leaseDuration: Invalid value: "soon": must be a duration such as 15s',
        ),
        ({"clientConnection": {"host": "x"}}, "clientConnection.host: there is no such field"),
    ],
)
def test_invalid_field_is_reported(fields: dict[str, Any], message: str) -> None:
    assert error_message(**fields) == message


def test_several_profiles_need_different_names() -> None:
    assert error_messages(
        configuration_file({"schedulerName": "a"}, {}, {"schedulerName": "a"})
    ) == [
        "profiles[1].schedulerName: Required value: several profiles need different names",
        'profiles[2].schedulerName: Duplicate value: "a"',
    ]


SCORES = ", ".join(
    f'"{name}"'
    for name in (
        "TaintToleration", "NodeAffinity", "NodeResourcesFit", "VolumeBinding",
        "PodTopologySpread", "InterPodAffinity", "DynamicResources",
        "NodeResourcesBalancedAllocation", "ImageLocality", "ExtendedResourcePacking",
        "ExtendedResourceAvoidance",
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        ({"scores": {}}, "scores: there is no such field"),
        (
            {"score": {"enabled": [{"name": "NodePorts"}]}},
            f'score.enabled[0].name: Unsupported value: "NodePorts": supported values: {SCORES}',
        ),
        ({"score": {"enabled": [{}]}}, "score.enabled[0].name: Required value"),
        (
            {"score": {"enabled": [{"name": "ImageLocality", "weight": -1}]}},
            "score.enabled[0].weight: Invalid value: -1: must be between 0 and 1000000, inclusive",
        ),
        (
            {"bind": {"enabled": [{"name": "DefaultBinder"}, {"name": "DefaultBinder"}]}},
            'bind.enabled[1].name: Duplicate value: "DefaultBinder"',
        ),
    ],
)
def test_invalid_plugin_set_is_reported(plugins: dict[str, Any], message: str) -> None:
    assert error_message({"plugins": plugins}) == f"profiles[0].plugins.{message}"


@pytest.mark.parametrize(
    ("point", "what"), [("multiPoint", "enabled"), ("filter", "disabled"), ("permit", "enabled")]
)
def test_unknown_plugin_is_reported(point: str, what: str) -> None:
    message = error_message({"plugins": {point: {what: [{"name": "Coscheduling"}]}}})
    assert message.startswith(
        f"profiles[0].plugins.{point}.{what}[0].name: "
        'Unsupported value: "Coscheduling": supported values: '
    )


RATIO = "RequestedToCapacityRatio"


@pytest.mark.parametrize(
    ("plugin", "args", "message"),
    [
        ("NodeResourcesFit", {"strategy": {}}, "strategy: there is no such field"),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"type": "Best"}},
            'scoringStrategy.type: Unsupported value: "Best": supported values: "LeastAllocated", '
            f'"MostAllocated", "{RATIO}"',
        ),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"type": "MostAllocated",
                                 "resources": [{"name": "cpu", "weight": 101}]}},
            "scoringStrategy.resources[0].weight: Invalid value: 101: "
            "must be between 0 and 100, inclusive",
        ),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"type": RATIO}},
            f"scoringStrategy.requestedToCapacityRatio.shape: Required value: {RATIO} needs at "
            "least one point",
        ),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"type": "MostAllocated", "requestedToCapacityRatio": {}}},
            "scoringStrategy.requestedToCapacityRatio: Forbidden: is only allowed for the type "
            f"{RATIO}",
        ),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"type": RATIO, "requestedToCapacityRatio": {
                "shape": [{"utilization": 9, "score": 1}, {"utilization": 9, "score": 2}]}}},
            "scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 9: "
            "values must be sorted in increasing order",
        ),
        (
            "NodeResourcesFit",
            {"ignoredResourceGroups": ["example.com"]},
            "ignoredResourceGroups: Forbidden: is not supported: the API server checks the "
            "capacity of every resource when it binds a pod",
        ),
        (
            "NodeResourcesBalancedAllocation",
            {"resources": [{"name": "cpu", "weight": 2}]},
            "resources[0].weight: Invalid value: 2: must be 1",
        ),
        (
            "NodeResourcesBalancedAllocation",
            {"resources": [{"name": "cpu"}, {"name": "cpu"}]},
            'resources[1].name: Duplicate value: "cpu"',
        ),
        (
            "InterPodAffinity",
            {"hardPodAffinityWeight": 101},
            "hardPodAffinityWeight: Invalid value: 101: must be between 0 and 100, inclusive",
        ),
        (
            "PodTopologySpread",
            {"defaultingType": "Some"},
            'defaultingType: Unsupported value: "Some": supported values: "System", "List"',
        ),
        (
            "PodTopologySpread",
            {"defaultConstraints": [
                {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway"}]},
            'defaultingType: Invalid value: "System": must be List where defaultConstraints are '
            "given",
        ),
        (
            "PodTopologySpread",
            {"defaultingType": "List", "defaultConstraints": [
                {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway",
                 "labelSelector": {}}]},
            "defaultConstraints[0].labelSelector: Forbidden: the selectors of the pod's Services "
            "are used",
        ),
        (
            "PodTopologySpread",
            {"defaultingType": "List", "defaultConstraints": [
                {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "x": 1}]},
            "defaultConstraints[0].x: there is no such field",
        ),
        (
            "NodeAffinity",
            {"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
            "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: "
            "Required value: must have at least one node selector term",
        ),
        (
            "DefaultPreemption",
            {"minCandidateNodesPercentage": 200},
            "minCandidateNodesPercentage: Invalid value: 200: must be between 0 and 100, inclusive",
        ),
        ("VolumeBinding", {"kind": "PodArgs"},
         'kind: Unsupported value: "PodArgs": supported values: "VolumeBindingArgs"'),
    ],
)  # fmt: skip
def test_invalid_plugin_argument_is_reported(
    plugin: str, args: dict[str, Any], message: str
) -> None:
    assert (
        error_message(profile_with_args(plugin, **args))
        == f"profiles[0].pluginConfig[0].args.{message}"
    )


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
)


@st.composite
def corrupted(draw: st.DrawFn, found: Any) -> Any:
    """The same value with another value somewhere in it."""
    if isinstance(found, dict) and found and draw(st.integers(0, 5)):
        key = draw(st.sampled_from(sorted(found)))
        return {**found, key: draw(corrupted(found[key]))}
    if isinstance(found, list) and found and draw(st.integers(0, 5)):
        at = draw(st.integers(0, len(found) - 1))
        return [*found[:at], draw(corrupted(found[at])), *found[at + 1 :]]
    return draw(anything)


@given(
    profiles().flatmap(
        lambda one: corrupted(configuration_file(one, parallelism=1, leaderElection={}))
    )
)
def test_any_content_gives_a_configuration_or_causes(found: Any) -> None:
    assert parse_configuration(found) != []


@pytest.mark.parametrize("huge", [10**30, -(10**30)])
def test_number_out_of_range_is_reported(huge: int) -> None:
    spread = {"topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": huge}
    for one in (
        profile_with_args("InterPodAffinity", hardPodAffinityWeight=huge),
        profile_with_args("PodTopologySpread", defaultingType="List", defaultConstraints=[spread]),
    ):
        assert error_message(one).startswith("profiles[0].pluginConfig[0].args.")


def test_errors_of_all_profiles_are_reported() -> None:
    bad = profile_with_args("InterPodAffinity", hardPodAffinityWeight=-1)
    both = profile_with_args("NodeAffinity", addedAffinity={"preferred": []})
    assert error_messages(
        configuration_file({"schedulerName": "a", **bad}, {"schedulerName": "b", **both})
    ) == [
        "profiles[0].pluginConfig[0].args.hardPodAffinityWeight: Invalid value: -1: "
        "must be between 0 and 100, inclusive",
        "profiles[1].pluginConfig[0].args.addedAffinity.preferred: there is no such field",
    ]


def test_arguments_of_a_plugin_without_arguments_are_rejected() -> None:
    assert error_message(profile_with_args("NodePorts")).startswith(
        'profiles[0].pluginConfig[0].name: Unsupported value: "NodePorts": supported values: '
    )
    twice = [{"name": "NodeAffinity"}, {"name": "NodeAffinity"}]
    assert error_message({"pluginConfig": twice}) == (
        'profiles[0].pluginConfig[1].name: Duplicate value: "NodeAffinity"'
    )


def test_candidate_minimums_cannot_both_be_zero() -> None:
    none = profile_with_args(
        "DefaultPreemption", minCandidateNodesPercentage=0, minCandidateNodesAbsolute=0
    )
    assert [message.partition(": ")[2] for message in error_messages(configuration_file(none))] == [
        "Invalid value: 0: cannot both be zero"
    ] * 2


@pytest.mark.parametrize("text", ["0s", "-5s", "999ms", "soon"])
def test_binding_timeout_of_devices_is_at_least_a_second(text: str) -> None:
    assert "bindingTimeout: " in error_message(
        profile_with_args("DynamicResources", bindingTimeout=text)
    )
    shortest = policy(profile_with_args("DynamicResources", bindingTimeout="1s"))
    assert shortest.device_timeout_seconds == 1.0
