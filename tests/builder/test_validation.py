"""What is wrong with trees, and where their users are told."""

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


def user(said: SchedulingConfig) -> WorkloadItem:
    """A group of pods whose user says this at `spec.scheduling`."""
    return leaf(user=said, path=PATH)


def parent(said: SchedulingConfig, *children: WorkloadItem) -> WorkloadItem:
    """A group of groups whose user says this at `spec.rootScheduling`."""
    return composite("root", *(children or (user(config(Gang(2))),)), user=said, path=ROOT)


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
def test_what_a_controller_does_not_list_is_denied(
    root: WorkloadItem, allow: list[Option], causes: CauseSummaries
) -> None:
    assert find_errors(root, allow=allow) == causes


def test_defaults_and_callbacks_of_a_controller_are_judged_too() -> None:
    item = leaf(default=config(Gang(2)), path=PATH)
    assert find_errors(item, allow=[Basic]) == [f"{PATH}.schedulingPolicy: Forbidden"]
    item = leaf(callbacks=[lambda _: config(Gang(2))], path=PATH)
    assert find_errors(item, allow=[Basic]) == [f"{PATH}.schedulingPolicy: Forbidden"]


def test_a_callback_must_leave_a_policy() -> None:
    item = leaf(callbacks=[lambda _: config()], path=PATH)
    assert find_errors(item) == [f"{PATH}.schedulingPolicy: Invalid"]


def test_a_policy_that_nobody_knows_yet_is_denied_even_where_all_are_allowed() -> None:
    (cause,) = WorkloadBuilder(
        user(map_pod_group_config(policy={"elastic": {}})), EVERYTHING
    ).validate()
    assert str(cause) == (
        "spec.scheduling.schedulingPolicy: Forbidden: "
        "elastic scheduling policy is not supported by this controller"
    )


# -------------------------------------------------------------------------------- fields by rule


@pytest.mark.parametrize(
    ("said", "causes"),
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
def test_a_group_of_pods_is_judged_by_the_rules_of_the_server(
    said: SchedulingConfig, causes: CauseSummaries
) -> None:
    assert find_errors(user(said)) == [f"{PATH}.{cause}" for cause in causes]
    assert find_errors(leaf(user=said)) == causes


@pytest.mark.parametrize(
    ("said", "causes"),
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
def test_a_group_of_groups_is_judged_likewise(
    said: SchedulingConfig, causes: CauseSummaries
) -> None:
    assert find_errors(parent(said)) == [f"{ROOT}.{cause}" for cause in causes]


def test_blocks_are_judged_end_to_end() -> None:
    pods = map_pod_group_config({"gang": {"minCount": 0}}, {"topology": [{}]})
    groups = map_composite_group_config({"gang": {"minGroupCount": 0}})
    assert find_errors(parent(groups, user(pods))) == [
        f"{ROOT}.schedulingPolicy.gang.minGroupCount: Invalid",
        f"{PATH}.schedulingPolicy.gang.minCount: Invalid",
        f"{PATH}.schedulingConstraints.topology[0].key: Required",
    ]


# -------------------------------------------------------------------------------- between levels


def chain(depth: int) -> WorkloadItem:
    """So many composites above each other, and a group of pods."""
    item = leaf("pods")
    for level in range(depth):
        item = composite(f"level-{level}", item, path=f"spec.level[{level}]")
    return item


def test_a_tree_is_at_most_four_levels_deep() -> None:
    assert find_errors(chain(3)) == []
    assert find_errors(chain(4)) == ["spec.level[3]: Invalid"]


def test_a_group_of_groups_holds_at_most_eight_of_a_sort() -> None:
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
def test_names_are_unique_in_the_whole_tree(root: WorkloadItem) -> None:
    assert find_errors(root) == ["spec.b.name: Duplicate"]


@pytest.mark.parametrize(
    ("name", "cause"),
    [("", "Required"), ("a.b", "Invalid"), ("A", "Invalid"), ("a" * 64, "Invalid")],
)
def test_a_name_is_a_dns_label(name: str, cause: str) -> None:
    item = leaf(name, path=PATH, fields={"name": "metadata.name"})
    assert find_errors(item) == [f"metadata.name: {cause}"]


def test_below_a_whole_nothing_is_disrupted_by_itself() -> None:
    root = parent(config(Gang(1), All()), user(config(Gang(2), Single())))
    (cause,) = WorkloadBuilder(root, EVERYTHING).validate()
    assert str(cause) == (
        'spec.scheduling.disruptionMode: Invalid value: "single": '
        'must be `all`, as that of "root" above it is'
    )


def test_two_levels_below_a_whole_nothing_is_disrupted_by_itself_either() -> None:
    middle = composite("middle", user(config(Gang(2), Single())), user=config(Gang(1)))
    assert find_errors(parent(config(Gang(1), All()), middle)) == [
        f"{PATH}.disruptionMode: Invalid"
    ]


def test_a_whole_is_scheduled_as_one_on_every_level() -> None:
    middle = composite("middle", user(config(Basic())), user=config(Gang(1)), path="spec.middle")
    (cause,) = WorkloadBuilder(parent(config(Gang(1), All()), middle), EVERYTHING).validate()
    assert str(cause) == (
        'spec.rootScheduling.disruptionMode: Invalid value: "": '
        'the disruptionMode `all` is not supported above "workers", whose policy is Basic'
    )


@pytest.mark.parametrize("mode", [None, Single(), All()])
def test_below_what_goes_one_by_one_everything_is_possible(mode: Single | All | None) -> None:
    child = user(config(Gang(2), mode))
    assert find_errors(parent(config(Gang(1), Single()), child)) == []
    assert find_errors(parent(config(Gang(1)), child)) == []


def prioritised(name: str, **said: object) -> WorkloadItem:
    place = f"spec.{name}.priorityClassName"
    return leaf(
        name, SchedulingConfig(**said), path=f"spec.{name}", fields={"priorityClassName": place}  # type: ignore[arg-type]
    )  # fmt: skip


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
def test_a_workload_has_one_priority(
    first: dict[str, object], second: dict[str, object], causes: CauseSummaries
) -> None:
    root = composite("root", prioritised("a", **first), prioritised("b", **second))
    assert find_errors(root) == causes


def test_a_group_of_groups_has_no_priority_of_its_own() -> None:
    root = composite(
        "root", prioritised("a"), default=config(priority_class_name="high"), path=ROOT
    )
    assert find_errors(root) == [f"{ROOT}.priorityClassName: Invalid"]


# --------------------------------------------------------------------------------------- updates

BROKEN = user(config(Gang(0)))


def test_what_was_wrong_before_an_update_is_let_be() -> None:
    assert find_errors(BROKEN, old=BROKEN) == []
    assert find_errors(BROKEN, old=user(config(Gang(1)))) == [
        f"{PATH}.schedulingPolicy.gang.minCount: Invalid"
    ]


def test_what_is_wrong_in_another_way_than_before_is_told() -> None:
    assert find_errors(user(config(Gang(-1))), old=BROKEN) == [
        f"{PATH}.schedulingPolicy.gang.minCount: Invalid"
    ]


def test_one_old_fault_excuses_no_other() -> None:
    worse = user(config(Gang(0), topology=("zone", "rack")))
    assert find_errors(worse, old=BROKEN) == [f"{PATH}.schedulingConstraints.topology: TooMany"]


def test_a_block_may_be_cleared() -> None:
    before = user(config(Gang(2), Single(), topology=("zone",)))
    assert find_errors(user(config()), old=before) == []


def test_a_child_is_the_same_if_its_name_and_place_are() -> None:
    before = parent(config(), BROKEN, leaf("other"))
    after = parent(config(), leaf("new"), leaf("other"), BROKEN)
    assert find_errors(after, old=before) == []


def test_a_child_that_moved_is_judged_again() -> None:
    before = parent(config(), composite("left", BROKEN), composite("right", leaf("x")))
    after = parent(config(), composite("left", leaf("x")), composite("right", BROKEN))
    assert find_errors(after, old=before) == [f"{PATH}.schedulingPolicy.gang.minCount: Invalid"]


def test_a_tree_of_another_name_excuses_nothing() -> None:
    other = leaf("others", config(Gang(0)), path=PATH)
    assert find_errors(BROKEN, old=other) == [f"{PATH}.schedulingPolicy.gang.minCount: Invalid"]


def test_where_a_field_stood_before_does_not_matter() -> None:
    before = leaf(user=config(Gang(0)), path="spec.oldScheduling")
    assert find_errors(BROKEN, old=before) == []
