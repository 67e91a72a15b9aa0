"""Validation of trees, and the fields at which errors are reported."""

from __future__ import annotations

import pytest

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
    map_composite_group_config,
    map_pod_group_config,
)
from phalanx.builder.config import Option
from tests.api.cause_summaries import CauseSummaries
from tests.builder.item_trees import EVERYTHING, composite, config, find_errors, leaf

PATH = "spec.scheduling"
ROOT = "spec.rootScheduling"


def user(configured: SchedulingConfig) -> WorkloadItem:
    """Build a PodGroup item with this configuration of the user at `spec.scheduling`."""
    return leaf(user=configured, path=PATH)


def parent(configured: SchedulingConfig, *children: WorkloadItem) -> WorkloadItem:
    """Build a composite item with this configuration of the user at `spec.rootScheduling`."""
    return composite("root", *(children or (user(config(Gang(2))),)), user=configured, path=ROOT)


# ----------------------------------------------------------------------------------- allow-lists


@pytest.mark.parametrize(
    ("root", "allow", "causes"),
    [
        (user(config()), [Gang], [f"{PATH}.schedulingPolicy: Forbidden"]),
        (user(config(Gang(1))), [Basic], [f"{PATH}.schedulingPolicy: Forbidden"]),
        (user(config(Gang(1), All())), [Gang, Single], [f"{PATH}.disruptionMode: Forbidden"]),
        (user(config(Gang(1), Single())), [Gang, All], [f"{PATH}.disruptionMode: Forbidden"]),
        (user(config(Gang(1), Single())), [Gang, Single], []),
        (user(config()), [], [f"{PATH}.schedulingPolicy: Forbidden"]),
        (
            parent(config(Gang(1)), user(config())),
            [Basic, Single],
            [f"{ROOT}.schedulingPolicy: Forbidden"],
        ),
        (
            parent(config(), user(config(Gang(1)))),
            [Basic, Single],
            [f"{PATH}.schedulingPolicy: Forbidden"],
        ),
    ],
)
def test_unlisted_options_are_forbidden(
    root: WorkloadItem, allow: list[Option], causes: CauseSummaries
) -> None:
    assert find_errors(root, allow=allow) == causes


def test_defaults_and_callbacks_of_a_controller_are_validated_too() -> None:
    item = leaf(default=config(Gang(2)), path=PATH)
    assert find_errors(item, allow=[Basic]) == [f"{PATH}.schedulingPolicy: Forbidden"]
    item = leaf(callbacks=[lambda _: config(Gang(2))], path=PATH)
    assert find_errors(item, allow=[Basic]) == [f"{PATH}.schedulingPolicy: Forbidden"]


def test_callback_must_leave_a_policy() -> None:
    item = leaf(callbacks=[lambda _: config()], path=PATH)
    assert find_errors(item) == [f"{PATH}.schedulingPolicy: Invalid"]


def test_unknown_policy_is_forbidden_even_if_all_are_allowed() -> None:
    (cause,) = WorkloadBuilder(
        user(map_pod_group_config(policy={"elastic": {}})), EVERYTHING
    ).validate()
    assert str(cause) == (
        "spec.scheduling.schedulingPolicy: Forbidden: "
        "elastic scheduling policy is not supported by this controller"
    )


# -------------------------------------------------------------------------------- single fields


@pytest.mark.parametrize(
    ("configured", "causes"),
    [
        (config(), []),
        (config(Gang(4)), []),
        (config(Gang(4), All()), []),
        (config(Basic(), Single()), []),
        (config(Basic(), All()), ["disruptionMode: Invalid"]),
        (config(None, All()), ["disruptionMode: Invalid"]),
        (config(Gang(0)), ["schedulingPolicy.gang.minCount: Invalid"]),
        (config(Gang(-1)), ["schedulingPolicy.gang.minCount: Invalid"]),
        (config(Gang()), ["schedulingPolicy.gang.minCount: Required"]),
        (config(Unknown({"basic": {}, "gang": {"minCount": 2}})), ["schedulingPolicy: Invalid"]),
        (config(Gang(1), Unknown({"single": {}, "all": {}})), ["disruptionMode: Invalid"]),
        (config(topology=("zone", "rack")), ["schedulingConstraints.topology: TooMany"]),
        (config(topology=("",)), ["schedulingConstraints.topology[0].key: Required"]),
        (config(topology=("no good",)), ["schedulingConstraints.topology[0].key: Invalid"]),
        (config(resource_claims=(ResourceClaim("a"),)), ["resourceClaims[0]: Invalid"]),
        (config(resource_claims=(ResourceClaim("a", "x", "y"),)), ["resourceClaims[0]: Invalid"]),
        (config(resource_claims=(ResourceClaim("", "x"),)), ["resourceClaims[0].name: Required"]),
        (
            config(resource_claims=(ResourceClaim("a", "x"), ResourceClaim("a", "y"))),
            ["resourceClaims[1]: Duplicate"],
        ),
        (
            config(resource_claims=tuple(ResourceClaim(f"c-{n}", "x") for n in range(5))),
            ["resourceClaims: TooMany"],
        ),
        (config(priority=1_000_000_001), ["priority: Invalid"]),
        (config(priority_class_name="No Class"), ["priorityClassName: Invalid"]),
        (config(preemption_policy="Sometimes"), ["preemptionPolicy: NotSupported"]),
    ],
)
def test_pod_group_is_validated_by_the_rules_of_the_server(
    configured: SchedulingConfig, causes: CauseSummaries
) -> None:
    assert find_errors(user(configured)) == [f"{PATH}.{cause}" for cause in causes]
    assert find_errors(leaf(user=configured)) == causes


@pytest.mark.parametrize(
    ("configured", "causes"),
    [
        (config(), []),
        (config(Gang(1), All()), []),
        (config(Gang(1), Single()), []),
        (config(Basic(), All()), ["disruptionMode: Invalid"]),
        (config(Gang(0)), ["schedulingPolicy.gang.minGroupCount: Invalid"]),
        (config(Gang()), ["schedulingPolicy.gang.minGroupCount: Required"]),
        (config(Gang(1), Unknown({"single": {}, "all": {}})), ["disruptionMode: Invalid"]),
        (config(topology=("zone", "rack")), ["schedulingConstraints.topology: TooMany"]),
        (config(resource_claims=(ResourceClaim("a", "x"),)), ["resourceClaims: Forbidden"]),
    ],
)
def test_composite_group_is_validated_by_the_rules_of_the_server(
    configured: SchedulingConfig, causes: CauseSummaries
) -> None:
    assert find_errors(parent(configured)) == [f"{ROOT}.{cause}" for cause in causes]


def test_blocks_are_validated_end_to_end() -> None:
    pods = map_pod_group_config({"gang": {"minCount": 0}}, {"topology": [{}]})
    groups = map_composite_group_config({"gang": {"minGroupCount": 0}})
    assert find_errors(parent(groups, user(pods))) == [
        f"{ROOT}.schedulingPolicy.gang.minGroupCount: Invalid",
        f"{PATH}.schedulingPolicy.gang.minCount: Invalid",
        f"{PATH}.schedulingConstraints.topology[0].key: Required",
    ]


# -------------------------------------------------------------------------------- between levels


def chain(depth: int) -> WorkloadItem:
    """Build a chain of `depth` composite items above a PodGroup item."""
    item = leaf("pods")
    for level in range(depth):
        item = composite(f"level-{level}", item, path=f"spec.level[{level}]")
    return item


def test_tree_has_at_most_four_levels() -> None:
    assert find_errors(chain(3)) == []
    assert find_errors(chain(4)) == ["spec.level[3]: Invalid"]


def test_composite_group_has_at_most_eight_children_of_a_kind() -> None:
    fields = {"podGroupTemplates": "spec.roles"}
    eight = [leaf(f"role-{n}") for n in range(8)]
    assert find_errors(composite("root", *eight, composite("more", leaf()))) == []
    nine = composite("root", *eight, leaf("role-8"), fields=fields)
    assert find_errors(nine) == ["spec.roles: TooMany"]


@pytest.mark.parametrize(
    "root",
    [
        composite("root", leaf("a"), leaf("a", path="spec.b")),
        composite("root", leaf("root", path="spec.b")),
        composite("root", composite("x", leaf("a")), composite("y", leaf("a", path="spec.b"))),
        composite("root", composite("x", leaf("a", path="spec.b")), composite("a", leaf("b"))),
    ],
    ids=["siblings", "parent and child", "cousins", "leaf and composite"],
)
def test_names_are_unique_in_the_tree(root: WorkloadItem) -> None:
    assert find_errors(root) == ["spec.b.name: Duplicate"]


@pytest.mark.parametrize(
    ("name", "cause"),
    [("", "Required"), ("a.b", "Invalid"), ("A", "Invalid"), ("a" * 64, "Invalid")],
)
def test_name_is_a_dns_label(name: str, cause: str) -> None:
    item = leaf(name, path=PATH, fields={"name": "metadata.name"})
    assert find_errors(item) == [f"metadata.name: {cause}"]


def test_mode_single_is_invalid_below_mode_all() -> None:
    root = parent(config(Gang(1), All()), user(config(Gang(2), Single())))
    (cause,) = WorkloadBuilder(root, EVERYTHING).validate()
    assert str(cause) == (
        'spec.scheduling.disruptionMode: Invalid value: "single": '
        'must be `all` because its ancestor "root" has `all`'
    )


def test_mode_single_is_invalid_two_levels_below_mode_all() -> None:
    middle = composite("middle", user(config(Gang(2), Single())), user=config(Gang(1)))
    assert find_errors(parent(config(Gang(1), All()), middle)) == [
        f"{PATH}.disruptionMode: Invalid"
    ]


def test_policy_basic_is_invalid_below_mode_all() -> None:
    middle = composite("middle", user(config(Basic())), user=config(Gang(1)), path="spec.middle")
    (cause,) = WorkloadBuilder(parent(config(Gang(1), All()), middle), EVERYTHING).validate()
    assert str(cause) == (
        'spec.rootScheduling.disruptionMode: Invalid value: "": '
        'the disruptionMode `all` is not supported above "workers", whose policy is Basic'
    )


@pytest.mark.parametrize("mode", [None, Single(), All()])
def test_every_mode_is_valid_below_mode_single(mode: Single | All | None) -> None:
    child = user(config(Gang(2), mode))
    assert find_errors(parent(config(Gang(1), Single()), child)) == []
    assert find_errors(parent(config(Gang(1)), child)) == []


def leaf_with_priority(name: str, **configured: object) -> WorkloadItem:
    path = f"spec.{name}.priorityClassName"
    user = SchedulingConfig(**configured)  # type: ignore[arg-type]
    return leaf(name, user, path=f"spec.{name}", fields={"priorityClassName": path})


@pytest.mark.parametrize(
    ("first", "second", "causes"),
    [
        ({}, {}, []),
        ({"priority_class_name": "high"}, {"priority_class_name": "high"}, []),
        (
            {"priority_class_name": "high"},
            {"priority_class_name": "low"},
            ["spec.b.priorityClassName: Invalid"],
        ),
        ({"priority_class_name": "high"}, {}, ["spec.b.priorityClassName: Invalid"]),
        ({}, {"priority_class_name": "high"}, ["spec.b.priorityClassName: Invalid"]),
        ({"priority": 1}, {"priority": 0}, ["spec.b.priority: Invalid"]),
        ({}, {"priority": 0}, ["spec.b.priority: Invalid"]),
        ({"preemption_policy": "Never"}, {}, []),
    ],
)
def test_workload_has_one_priority(
    first: dict[str, object], second: dict[str, object], causes: CauseSummaries
) -> None:
    root = composite("root", leaf_with_priority("a", **first), leaf_with_priority("b", **second))
    assert find_errors(root) == causes


def test_composite_group_cannot_have_a_different_priority() -> None:
    root = composite(
        "root", leaf_with_priority("a"), default=config(priority_class_name="high"), path=ROOT
    )
    assert find_errors(root) == [f"{ROOT}.priorityClassName: Invalid"]


# --------------------------------------------------------------------------------------- updates

BROKEN = user(config(Gang(0)))


def test_error_that_the_old_tree_had_is_not_reported() -> None:
    assert find_errors(BROKEN, old=BROKEN) == []
    assert find_errors(BROKEN, old=user(config(Gang(1)))) == [
        f"{PATH}.schedulingPolicy.gang.minCount: Invalid"
    ]


def test_different_error_at_the_same_field_is_reported() -> None:
    assert find_errors(user(config(Gang(-1))), old=BROKEN) == [
        f"{PATH}.schedulingPolicy.gang.minCount: Invalid"
    ]


def test_old_error_hides_no_other() -> None:
    worse = user(config(Gang(0), topology=("zone", "rack")))
    assert find_errors(worse, old=BROKEN) == [f"{PATH}.schedulingConstraints.topology: TooMany"]


def test_block_may_be_cleared() -> None:
    before = user(config(Gang(2), Single(), topology=("zone",)))
    assert find_errors(user(config()), old=before) == []


def test_child_is_the_same_if_its_name_and_ancestors_are() -> None:
    before = parent(config(), BROKEN, leaf("other"))
    after = parent(config(), leaf("new"), leaf("other"), BROKEN)
    assert find_errors(after, old=before) == []


def test_moved_child_is_validated_again() -> None:
    before = parent(config(), composite("left", BROKEN), composite("right", leaf("x")))
    after = parent(config(), composite("left", leaf("x")), composite("right", BROKEN))
    assert find_errors(after, old=before) == [f"{PATH}.schedulingPolicy.gang.minCount: Invalid"]


def test_old_tree_of_another_name_hides_no_error() -> None:
    other = leaf("others", config(Gang(0)), path=PATH)
    assert find_errors(BROKEN, old=other) == [f"{PATH}.schedulingPolicy.gang.minCount: Invalid"]


def test_old_path_of_a_field_does_not_matter() -> None:
    before = leaf(user=config(Gang(0)), path="spec.oldScheduling")
    assert find_errors(BROKEN, old=before) == []
