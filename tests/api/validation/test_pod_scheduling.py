"""Rules of the scheduling fields of a pod spec."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.errors import MAX_CAUSES
from phalanx.api.validation.pod_scheduling import MAX_NODE_REQUIREMENTS, MAX_PEER_TERMS
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.validation.test_pod_spec import create_causes, spec

REQUIRED_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED_TERMS = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("toleration", "causes"),
    [
        ({"operator": "Exists"}, []),
        ({"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 0}, []),
        ({"key": "a b", "operator": "Exists"}, ["key: Invalid"]),
        ({"operator": "Equal"}, ["operator: Invalid"]),
        ({"key": "a", "operator": "Exists", "value": "b"}, ["operator: Invalid"]),
        ({"key": "a", "value": "b c" + "x" * 64}, ["operator: Invalid"]),
        (
            {"key": "a", "operator": "Like", "effect": "NoThing"},
            ["operator: NotSupported", "effect: NotSupported"],
        ),
        ({"key": "a", "tolerationSeconds": 1}, ["effect: Invalid"]),
    ],
)
def test_a_toleration_names_a_taint(toleration: Object, causes: CauseSummaries) -> None:
    assert create_causes(spec(tolerations=[toleration])) == prefix_summaries(
        "tolerations[0]", causes
    )


@pytest.mark.parametrize(
    ("term", "causes"),
    [
        ({"key": "a", "operator": "In", "values": ["b"]}, []),
        ({"key": "a", "operator": "Exists"}, []),
        ({"key": "a", "operator": "Gt", "values": ["1"]}, []),
        (
            {"key": "a b", "operator": "Near", "values": ["x"]},
            ["operator: Invalid", "key: Invalid"],
        ),
        ({"key": "a", "operator": "NotIn"}, ["values: Required"]),
        ({"key": "a", "operator": "DoesNotExist", "values": ["x"]}, ["values: Forbidden"]),
        ({"key": "a", "operator": "Lt", "values": ["1", "2"]}, ["values: Required"]),
        ({"key": "a", "operator": "In", "values": ["b c"]}, ["values[0]: Invalid"]),
    ],
)
def test_nodes_are_required_by_label(term: Object, causes: CauseSummaries) -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    place = f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms[0].matchExpressions[0]"
    assert create_causes(
        spec(affinity={"nodeAffinity": {REQUIRED_TERMS: required}})
    ) == prefix_summaries(place, causes)


@pytest.mark.parametrize(
    ("term", "causes"),
    [
        ({"key": "metadata.name", "operator": "In", "values": ["n"]}, []),
        ({"key": "metadata.name", "operator": "In", "values": ["N"]}, ["values[0]: Invalid"]),
        ({"key": "metadata.name", "operator": "In"}, ["values: Required"]),
        ({"key": "x", "operator": "Exists"}, ["operator: Invalid", "key: Invalid"]),
    ],
)
def test_nodes_are_required_by_name(term: Object, causes: CauseSummaries) -> None:
    required = {"nodeSelectorTerms": [{"matchFields": [term]}]}
    place = f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms[0].matchFields[0]"
    assert create_causes(
        spec(affinity={"nodeAffinity": {REQUIRED_TERMS: required}})
    ) == prefix_summaries(place, causes)


def test_required_nodes_need_a_term() -> None:
    affinity: Object = {"nodeAffinity": {REQUIRED_TERMS: {"nodeSelectorTerms": []}}}
    assert create_causes(spec(affinity=affinity)) == [
        f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms: Required"
    ]


def test_preferred_nodes_have_a_weight_and_any_values() -> None:
    term = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]}
    affinity = {"nodeAffinity": {PREFERRED_TERMS: [{"weight": 0, "preference": term}]}}
    assert create_causes(spec(affinity=affinity)) == [
        f"affinity.nodeAffinity.{PREFERRED_TERMS}[0].weight: Invalid"
    ]


def term(**fields: Any) -> Object:
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}, **fields}


@pytest.mark.parametrize(
    ("said", "causes"),
    [
        (term(), []),
        (
            term(topologyKey=""),
            ["topologyKey: Required", "topologyKey: Invalid", "topologyKey: Invalid"],
        ),
        (term(labelSelector={"matchLabels": {"a b": "c"}}), ["labelSelector.matchLabels: Invalid"]),
        (
            term(
                labelSelector={
                    "matchExpressions": [{"key": "a", "operator": "Gt", "values": ["b c"]}]
                }
            ),
            [
                "labelSelector.matchExpressions[0].operator: Invalid",
                "labelSelector.matchExpressions[0].values[0]: Invalid",
            ],
        ),
        (term(namespaces=["A"]), ["namespace: Invalid"]),
        (term(labelSelector=None, matchLabelKeys=["a"]), ["matchLabelKeys: Forbidden"]),
        (term(matchLabelKeys=["a b"]), ["matchLabelKeys[0]: Invalid"]),
        (term(matchLabelKeys=["a"], mismatchLabelKeys=["a"]), ["matchLabelKeys[0]: Invalid"]),
    ],
)
@pytest.mark.parametrize("sort", ["podAffinity", "podAntiAffinity"])
def test_pods_are_sought_or_shunned_by_label(
    sort: str, said: Object, causes: CauseSummaries
) -> None:
    affinity = {sort: {REQUIRED_TERMS: [said]}}
    assert create_causes(spec(affinity=affinity)) == prefix_summaries(
        f"affinity.{sort}.{REQUIRED_TERMS}[0]", causes
    )


def test_preferred_pods_have_a_weight() -> None:
    weighted = {"weight": 101, "podAffinityTerm": term(namespaces=["A"])}
    place = f"affinity.podAffinity.{PREFERRED_TERMS}[0]"
    assert create_causes(spec(affinity={"podAffinity": {PREFERRED_TERMS: [weighted]}})) == [
        f"{place}.weight: Invalid",
        f"{place}.podAffinityTerm.namespace: Invalid",
    ]


def spread(**fields: Any) -> Object:
    return {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}},
        **fields,
    }


@pytest.mark.parametrize(
    ("said", "causes"),
    [
        (spread(minDomains=2, nodeAffinityPolicy="Honor"), []),
        (
            spread(maxSkew=0, whenUnsatisfiable="Cry"),
            ["maxSkew: Invalid", "whenUnsatisfiable: NotSupported"],
        ),
        (spread(topologyKey=""), ["topologyKey: Required"]),
        (spread(minDomains=0), ["minDomains: Invalid"]),
        (spread(minDomains=1, whenUnsatisfiable="ScheduleAnyway"), ["minDomains: Invalid"]),
        (spread(nodeTaintsPolicy="Obey"), ["nodeTaintsPolicy: NotSupported"]),
        (
            spread(labelSelector={"matchLabels": {"a b": ""}}),
            ["labelSelector.matchLabels: Invalid"],
        ),
        (spread(labelSelector=None, matchLabelKeys=["a"]), ["matchLabelKeys: Forbidden"]),
    ],
)
def test_pods_are_spread_by_a_positive_skew(said: Object, causes: CauseSummaries) -> None:
    assert create_causes(spec(topologySpreadConstraints=[said])) == prefix_summaries(
        "topologySpreadConstraints[0]", causes
    )


def test_topology_spread_constraints_are_unique() -> None:
    assert create_causes(spec(topologySpreadConstraints=[spread(), spread(maxSkew=2)])) == [
        "topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate"
    ]


PEER_TERM = {"labelSelector": {}, "topologyKey": "zone"}
NODE_TERM = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}


def constrained_spec(peer_terms: int = 0, spreads: int = 0, node_terms: int = 0) -> Object:
    """A spec with so many constraints of each sort; half of the terms are preferences."""
    half = peer_terms // 2
    weighted = {"weight": 1, "podAffinityTerm": PEER_TERM}
    affinity = {
        "podAffinity": {PREFERRED_TERMS: [weighted] * half},
        "podAntiAffinity": {REQUIRED_TERMS: [PEER_TERM] * (peer_terms - half)},
    }
    if node_terms:
        terms = {"nodeSelectorTerms": [NODE_TERM] * node_terms}
        affinity["nodeAffinity"] = {REQUIRED_TERMS: terms}
    return spec(
        affinity=affinity,
        topologySpreadConstraints=[spread(topologyKey=f"k{n}") for n in range(spreads)],
    )


@pytest.mark.parametrize(
    ("counts", "causes"),
    [
        ((MAX_PEER_TERMS,), []),
        ((MAX_PEER_TERMS + 1,), ["affinity: TooMany"]),
        ((MAX_PEER_TERMS - 5, 5), []),
        ((MAX_PEER_TERMS - 5, 6), ["topologySpreadConstraints: TooMany"]),
        ((0, MAX_PEER_TERMS + 1), ["topologySpreadConstraints: TooMany"]),
        ((0, 0, MAX_NODE_REQUIREMENTS), []),
        ((0, 0, MAX_NODE_REQUIREMENTS + 1), ["affinity.nodeAffinity: TooMany"]),
    ],
)
def test_the_constraints_of_a_pod_are_limited(
    counts: tuple[int, ...], causes: CauseSummaries
) -> None:
    assert create_causes(constrained_spec(*counts)) == causes


def test_the_labels_of_a_node_selector_are_limited() -> None:
    labels = {f"k{n}": "v" for n in range(MAX_NODE_REQUIREMENTS + 1)}
    assert create_causes(spec(nodeSelector=labels)) == ["nodeSelector: TooMany"]


def test_only_the_first_causes_of_a_long_list_are_reported() -> None:
    found = create_causes(spec(tolerations=[{"operator": "Like"}] * 10_000))
    assert 0 < len(found) <= 2 * MAX_CAUSES
    assert found[0].startswith("tolerations[0]")
