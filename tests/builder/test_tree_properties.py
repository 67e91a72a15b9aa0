"""Properties of trees: built Workloads pass server validation, other trees are rejected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.errors import Invalid
from phalanx.api.kinds import WORKLOAD
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from phalanx.builder import (
    All,
    Basic,
    Gang,
    ResourceClaim,
    SchedulingConfig,
    Single,
    Unknown,
    WorkloadBuilder,
    WorkloadItem,
    default_min_count,
    new_groups,
)
from phalanx.builder.config import Policy
from phalanx.builder.workload_item import resolve_tree
from tests.builder.item_trees import EVERYTHING, OWNER, errors_from_server
from tests.builders import share_of_examples

# ----------------------------------------------------------------------------------- valid trees

KEYS = st.sampled_from(["zone", "topology.kubernetes.io/rack"])
VALID_CLAIMS = st.lists(st.sampled_from("abcd"), unique=True, max_size=4).map(
    lambda names: tuple(ResourceClaim(name, "claim") for name in names)
)


@st.composite
def valid_configs(
    draw: st.DrawFn, *, disrupted_together: bool, composite: bool
) -> SchedulingConfig:
    """Draw a valid configuration; `disrupted_together` below a group with mode All."""
    gangs: list[Policy] = [Gang(1), Gang(3), Gang()]
    policy = draw(st.sampled_from(gangs if disrupted_together else [*gangs, Basic()]))
    modes = [None, All()] if disrupted_together else [None, Single()]
    return SchedulingConfig(
        policy=policy,
        topology=tuple(draw(st.lists(KEYS, max_size=1))),
        disruption_mode=draw(st.sampled_from(modes)),
        resource_claims=() if composite else draw(VALID_CLAIMS),
    )


@st.composite
def valid_trees(draw: st.DrawFn) -> WorkloadItem:
    """Draw a tree without validation errors."""
    numbers = iter(range(10_000))
    disrupted_together, priority = draw(st.booleans()), draw(st.sampled_from(["", "high"]))

    def item(depth: int) -> WorkloadItem:
        below = draw(st.integers(0, 3)) if depth else 0
        children = tuple(item(depth - 1) for _ in range(below))
        user = draw(valid_configs(disrupted_together=disrupted_together, composite=bool(children)))
        if disrupted_together and depth == 3:
            user = replace(user, disruption_mode=All())
        default = SchedulingConfig(priority_class_name="" if children else priority)
        return WorkloadItem(
            f"item-{next(numbers)}",
            default=default,
            user=user,
            callbacks=[default_min_count(draw(st.integers(0, 5)))],
            children=children,
        )

    return item(3)


@given(valid_trees())
def test_valid_tree_is_built_and_accepted_with_all_its_groups(root: WorkloadItem) -> None:
    builder = WorkloadBuilder(root, EVERYTHING)
    assert builder.validate() == []
    workload = builder.build(OWNER)
    assert errors_from_server(workload) == []
    groups = new_groups(workload)
    assert [errors_from_server(group) for group in groups] == [[]] * len(groups)
    assert len(groups) == len(list(resolve_tree(root).walk()))


@given(valid_trees())
def test_groups_form_the_tree_of_their_items_by_parent(root: WorkloadItem) -> None:
    groups = new_groups(WorkloadBuilder(root, EVERYTHING).build(OWNER))
    names = {
        group["metadata"]["name"]: group["spec"]["workloadRef"]["templateName"] for group in groups
    }
    edges = {
        (names.get(group["spec"].get("parentCompositePodGroupName", "")), template_of(group))
        for group in groups
    }
    assert len(names) == len(groups)
    assert edges == {
        ((node.names[-2] if len(node.names) > 1 else None), node.item.name)
        for node in resolve_tree(root).walk()
    }


def template_of(group: Object) -> str:
    name: str = group["spec"]["workloadRef"]["templateName"]
    return name


# ------------------------------------------------------------------------------------- any trees

CONFIGS = st.builds(
    SchedulingConfig,
    policy=st.sampled_from(
        [
            None,
            Basic(),
            Gang(),
            Gang(0),
            Gang(2),
            Unknown({"elastic": {}}),
            Unknown({"basic": {}, "gang": {}}),
        ]
    ),
    topology=st.lists(st.sampled_from(["zone", "", "no good"]), max_size=2).map(tuple),
    disruption_mode=st.sampled_from([None, Single(), All(), Unknown({"half": {}})]),
    resource_claims=st.lists(
        st.builds(
            ResourceClaim,
            st.sampled_from(["a", "b", "", "A"]),
            st.sampled_from([None, "x", ""]),
            st.sampled_from([None, "y"]),
        ),
        max_size=5,
    ).map(tuple),
    priority_class_name=st.sampled_from(["", "high", "No"]),
    priority=st.sampled_from([None, 0, 2_000_000_000]),
    preemption_policy=st.sampled_from(["", "Never", "Sometimes"]),
)
OFTEN_EMPTY = st.one_of(st.just(SchedulingConfig()), CONFIGS)
NAMES = st.sampled_from(["a", "b", "c", "d", "e", "", "Bad.Name"])


def items(children: st.SearchStrategy[Any]) -> st.SearchStrategy[WorkloadItem]:
    return st.builds(
        WorkloadItem,
        name=NAMES,
        default=OFTEN_EMPTY,
        user=OFTEN_EMPTY,
        callbacks=st.sampled_from([(), (default_min_count(3),)]),
        children=children,
        path=NAMES.map(lambda name: f"spec.{name or 'root'}"),
    )


TREES = st.recursive(
    items(st.just(())), lambda inner: items(st.lists(inner, max_size=9).map(tuple)), max_leaves=12
)


@share_of_examples(0.5)
@given(TREES)
def test_tree_is_built_exactly_if_it_has_no_errors(root: WorkloadItem) -> None:
    builder = WorkloadBuilder(root, EVERYTHING)
    causes = builder.validate()
    assert builder.validate() == causes
    assert builder.validate(old=root) == []
    if causes:
        with pytest.raises(Invalid) as error:
            builder.build(OWNER)
        assert list(error.value.causes) == causes
    else:
        assert validate(WORKLOAD, builder.build(OWNER), None) == []


@share_of_examples(0.5)
@given(TREES)
def test_every_cause_is_at_a_path_of_the_user(root: WorkloadItem) -> None:
    paths = tuple(node.item.path for node in resolve_tree(root).walk())
    for cause in WorkloadBuilder(root, EVERYTHING).validate():
        assert cause.field.startswith(paths)
