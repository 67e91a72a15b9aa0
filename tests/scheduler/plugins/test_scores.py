"""How well? All forms of an opinion give the same integers, whatever it is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from phalanx.api.core import Pod
from phalanx.scheduler.cluster.pod_shape import PodShape, shape_of
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.plugins.scores import score_image_locality
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy
from tests.scheduler import oracle
from tests.scheduler.builders import cluster, node, pod
from tests.scheduler.configurations import ARGUMENTS, Profile, policy
from tests.scheduler.oracle_settings import OracleSettings
from tests.scheduler.strategies import Situation, situations

FIT, BALANCE = "NodeResourcesFit", "NodeResourcesBalancedAllocation"
ORACLE_SCORES = {FIT: oracle.allocation, BALANCE: oracle.balanced_allocation}


@st.composite
def resource_profiles(draw: st.DrawFn) -> Profile:
    """A profile that says what is thought of load."""
    return {
        "pluginConfig": [{"name": name, "args": draw(ARGUMENTS[name])} for name in (FIT, BALANCE)]
    }


def scores(rules: SchedulerPolicy, snapshot: Snapshot, shape: PodShape) -> dict[str, list[int]]:
    """What every opinion says of every node, in both its forms."""
    said = {}
    for row in rules.scores:
        opinion = row.build_scorer(shape, snapshot.columns)
        said[row.name] = opinion.score_nodes(snapshot).tolist()
        assert said[row.name] == [
            opinion.score_node(snapshot.node_class(i)) for i in range(len(snapshot))
        ]
        assert all(0 <= score <= 100 for score in said[row.name])
    return said


def assert_agreed(situation: Situation, rules: SchedulerPolicy, settings: OracleSettings) -> None:
    snapshot = situation.cache().snapshot()
    machines = list(situation.world().nodes.values())
    for member in situation.entity.members[:5]:
        said = scores(rules, snapshot, member.shape)
        assert said == {
            name: [slow(member.pod, machine, settings) for machine in machines]
            for name, slow in ORACLE_SCORES.items()
        }


@given(situations())
def test_all_nodes_at_once_one_node_and_the_oracle_agree(situation: Situation) -> None:
    assert_agreed(situation, DEFAULT_POLICY, OracleSettings())


@given(situations(), resource_profiles())
def test_they_agree_on_any_resources_weights_and_strategies(
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
def test_both_forms_agree_on_any_amounts(
    rows: list[tuple[int, int, int, int]], cpu: int, memory: int, profile: Profile
) -> None:
    machines = [
        node(f"n{i:03}", room={"cpu": f"{row[0]}m", "memory": row[1]}) for i, row in enumerate(rows)
    ]
    load = [
        pod(f"p{i}", on=f"n{i:03}", asks={"cpu": f"{row[2]}m", "memory": row[3]})
        for i, row in enumerate(rows)
    ]
    snapshot = cluster(machines, load).snapshot()
    shape = shape_of(pod("new", asks={"cpu": f"{cpu}m", "memory": memory}))
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

    def worth(*references: str) -> list[int]:
        found = score_image_locality(snapshot, shape_of(with_volumes(*references)))
        assert found is not None
        return list(found)

    # One node of two has it, so that half of it counts, out of 1000Mi for each image.
    assert worth() == [100 * (200 - 23) // (1000 - 23), 0]
    assert worth("model") == [100 * (500 - 23) // (2000 - 23), 0]
    assert worth("model", "other") == [100 * (500 - 23) // (3000 - 23), 0]
