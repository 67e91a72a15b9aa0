"""Scores of one node and of many give the same integers, under any arguments."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from phalanx.api.core import Pod
from phalanx.scheduler.cluster.pod_shape import PodShape, shape_of
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.plugins.load_scoring import MANY_NODES, ONE_NODE, columns_of
from phalanx.scheduler.plugins.node_plugins import score_image_locality
from phalanx.scheduler.plugins.plugin import LoadScore
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy
from tests.scheduler import oracle
from tests.scheduler.builders import cluster, node, pod
from tests.scheduler.configurations import ARGUMENTS, Profile, policy
from tests.scheduler.oracle_settings import OracleSettings
from tests.scheduler.strategies import Situation, situations

FIT, BALANCE = "NodeResourcesFit", "NodeResourcesBalancedAllocation"
PACKING = "ExtendedResourcePacking"
ORACLE_SCORES = {
    FIT: oracle.allocation,
    BALANCE: oracle.balanced_allocation,
    PACKING: oracle.packing,
}


@st.composite
def resource_profiles(draw: st.DrawFn) -> Profile:
    """A profile with arguments for the scores that depend on load."""
    return {
        "pluginConfig": [{"name": name, "args": draw(ARGUMENTS[name])} for name in ORACLE_SCORES]
    }


def scores(rules: SchedulerPolicy, snapshot: Snapshot, shape: PodShape) -> dict[str, list[int]]:
    """The load scores of every node; those of one node and of many are equal."""
    found = {}
    for name, _, score in rules.scores:
        if not isinstance(score, LoadScore):
            continue
        scorer = score.build_scorer(shape, snapshot.columns)
        many = np.broadcast_to(scorer(columns_of(snapshot), MANY_NODES), len(snapshot)).tolist()
        one = [scorer(snapshot.node_class(i), ONE_NODE) for i in range(len(snapshot))]
        assert many == one
        assert all(type(value) is int and 0 <= value <= 100 for value in one)
        found[name] = many
    return found


def assert_agreed(situation: Situation, rules: SchedulerPolicy, settings: OracleSettings) -> None:
    snapshot = situation.cache().snapshot()
    machines = list(situation.oracle_cluster().nodes.values())
    for member in situation.entity.members[:5]:
        assert scores(rules, snapshot, member.shape) == {
            name: [slow(member.pod, machine, settings) for machine in machines]
            for name, slow in ORACLE_SCORES.items()
        }


@given(situations())
def test_scores_of_one_node_of_many_and_of_the_oracle_agree(situation: Situation) -> None:
    assert_agreed(situation, DEFAULT_POLICY, OracleSettings())


@given(situations(), resource_profiles())
def test_scores_agree_under_any_resources_weights_and_strategies(
    situation: Situation, profile: Profile
) -> None:
    assert_agreed(situation, policy(profile), OracleSettings(profile))


amount = st.integers(0, 2**50)


@given(
    st.lists(st.tuples(amount, amount, amount, amount), min_size=1),
    amount,
    amount,
    resource_profiles(),
)
def test_scores_of_one_node_and_of_many_agree_for_any_amounts(
    rows: list[tuple[int, int, int, int]], cpu: int, memory: int, profile: Profile
) -> None:
    machines = [
        node(f"n{i:03}", allocatable={"cpu": f"{row[0]}m", "memory": row[1]})
        for i, row in enumerate(rows)
    ]
    load = [
        pod(f"p{i}", on=f"n{i:03}", requests={"cpu": f"{row[2]}m", "memory": row[3]})
        for i, row in enumerate(rows)
    ]
    snapshot = cluster(machines, load).snapshot()
    shape = shape_of(pod("new", requests={"cpu": f"{cpu}m", "memory": memory}))
    for rules in (DEFAULT_POLICY, policy(profile)):
        scores(rules, snapshot, shape)


MEBIBYTE = 1024 * 1024


def with_volumes(*references: str) -> Pod:
    """A pod of one container that mounts these images."""
    volumes = [{"name": f"v{n}", "image": {"reference": r}} for n, r in enumerate(references)]
    spec = {"containers": [{"name": "c", "image": "web:1"}], "volumes": volumes}
    return convert({"metadata": {"name": "p", "namespace": "default"}, "spec": spec}, Pod)


def test_images_of_volumes_count_like_those_of_containers() -> None:
    images = {"web:1": 400 * MEBIBYTE, "model:latest": 600 * MEBIBYTE}
    snapshot = cluster([node("a", images=images), node("b")]).snapshot()

    def score_of(*references: str) -> list[int]:
        found = score_image_locality(snapshot, shape_of(with_volumes(*references)))
        assert found is not None
        return list(found)

    # One node of two has it, so that half of it counts, out of 1000Mi for each image.
    assert score_of() == [100 * (200 - 23) // (1000 - 23), 0]
    assert score_of("model") == [100 * (500 - 23) // (2000 - 23), 0]
    assert score_of("model", "other") == [100 * (500 - 23) // (3000 - 23), 0]
