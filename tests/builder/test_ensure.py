"""Plans of the objects of an owner: discovery, creation in order, resizing, giving way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from phalanx.api.errors import Invalid
from phalanx.api.kinds import POD_GROUP
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION
from phalanx.api.wire import Object
from phalanx.builder import (
    CreateObject,
    DeleteObject,
    EnsurePlan,
    Gang,
    GroupInstance,
    Link,
    ObservedObjects,
    PatchObject,
    SchedulingConfig,
    Template,
    WorkloadBuilder,
    WorkloadItem,
    controller_reference,
    ensure_linked,
    new_groups,
    plan_deletion,
)
from phalanx.builder.template_changes import gang_size
from tests.builder.item_trees import EVERYTHING, OWNER, composite, config, leaf

CHILD: Object = {
    "apiVersion": "example.com/v1",
    "kind": "Part",
    "metadata": {
        "name": "part",
        "namespace": "team",
        "uid": "uid-child",
        "ownerReferences": [controller_reference(OWNER)],
    },
}


def gang(name: str, size: int) -> WorkloadItem:
    return leaf(name, config(Gang(size)))


def tree(workers: int = 4) -> WorkloadItem:
    return composite("root", gang("driver", 1), gang("workers", workers), user=config(Gang(2)))


def ensure(
    objects: list[Object],
    root: WorkloadItem | None = None,
    groups: list[GroupInstance] | None = None,
    **more: Any,
) -> EnsurePlan:
    builder = WorkloadBuilder(root or tree(), EVERYTHING)
    return builder.ensure(OWNER, ObservedObjects.from_objects(objects), groups, **more)


def store(new: Object) -> Object:
    """Return an object as a server would return it."""
    return {**new, "metadata": {**new["metadata"], "uid": f"uid-{new['metadata']['name']}"}}


def converge(root: WorkloadItem | None = None, **more: Any) -> list[Object]:
    """Create what the plans ask for until there is nothing left."""
    objects: list[Object] = []
    while operations := ensure(objects, root, **more).operations:
        objects += [store(one.obj) for one in operations if isinstance(one, CreateObject)]
    return objects


def count_always(members: int) -> Callable[[str], int]:
    return lambda name: members


def summarize(plan: EnsurePlan) -> list[str]:
    lines = []
    for one in plan.operations:
        match one:
            case CreateObject(kind, obj):
                template = obj["spec"].get("workloadRef", {}).get("templateName", "")
                lines.append(f"create {kind.name} {template}".strip())
            case PatchObject(kind):
                lines.append(f"patch {kind.name}")
            case DeleteObject(kind, meta):
                lines.append(f"delete {kind.name} {meta.name}")
    return lines


def test_workload_comes_first_then_groups_from_the_root_down() -> None:
    first = ensure([])
    assert summarize(first) == ["create Workload"]
    assert not first.is_ready
    (workload,) = first.operations
    assert isinstance(workload, CreateObject)
    second = ensure([store(workload.obj)])
    assert summarize(second) == [
        "create CompositePodGroup root",
        "create PodGroup driver",
        "create PodGroup workers",
    ]
    objects = converge()
    ready = ensure(objects)
    assert ready.is_ready
    assert not ready.operations
    assert ready.fallback is None
    names = {one["spec"]["workloadRef"]["templateName"]: one for one in objects[1:]}
    parent = names["workers"]["spec"]["parentCompositePodGroupName"]
    assert parent == ready.group_name("root") == names["root"]["metadata"]["name"]


def test_only_the_missing_group_is_created_again() -> None:
    objects = converge()
    assert summarize(ensure(objects[:-1])) == ["create PodGroup workers"]


def test_new_size_is_written_to_the_workload_and_then_to_the_group() -> None:
    plan = ensure(converge(), tree(workers=6))
    assert summarize(plan) == ["patch Workload", "patch PodGroup"]
    assert plan.is_ready
    workload, group = plan.operations
    assert isinstance(workload, PatchObject)
    assert isinstance(group, PatchObject)
    size = {"schedulingPolicy": {"gang": {"minCount": 6}}}
    # The list is whole: a server replaces it.
    (root,) = workload.change["spec"]["compositePodGroupTemplates"]
    assert root["schedulingPolicy"] == {"gang": {"minGroupCount": 2}}
    assert [one["name"] for one in root["podGroupTemplates"]] == ["driver", "workers"]
    assert root["podGroupTemplates"][1]["schedulingPolicy"] == size["schedulingPolicy"]
    assert group.change == {"spec": size}


def test_new_number_of_groups_is_written_to_the_workload() -> None:
    wider = composite("root", gang("driver", 1), gang("workers", 4), user=config(Gang(1)))
    (operation,) = ensure(converge(), wider).operations
    assert isinstance(operation, PatchObject)
    (root,) = operation.change["spec"]["compositePodGroupTemplates"]
    assert root["schedulingPolicy"] == {"gang": {"minGroupCount": 1}}
    assert [one["name"] for one in root["podGroupTemplates"]] == ["driver", "workers"]


def test_another_priority_replaces_the_workload_only_on_request() -> None:
    objects = converge(gang("workers", 4))
    urgent = replace(gang("workers", 4), default=SchedulingConfig(priority_class_name="high"))
    assert ensure(objects, urgent).operations == ()
    plan = ensure(objects, urgent, replaces_workload=True)
    assert summarize(plan) == [f"delete Workload {objects[0]['metadata']['name']}"]
    assert not plan.is_ready
    # A group may outlive the Workload: else the garbage collector would have to release it.
    (_, group) = converge(urgent, replaces_workload=True)
    assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["Training"]
    # Sizes alone are no reason.
    plan = ensure(objects, gang("workers", 6), replaces_workload=True)
    assert summarize(plan) == ["patch Workload", "patch PodGroup"]


def test_workload_with_a_constraint_that_is_wanted_no_longer_is_replaced() -> None:
    placed = leaf("workers", SchedulingConfig(policy=Gang(4), topology=("rack",)))
    objects = converge(placed)
    assert ensure(objects, placed, replaces_workload=True).operations == ()
    plan = ensure(objects, gang("workers", 4), replaces_workload=True)
    assert summarize(plan) == [f"delete Workload {objects[0]['metadata']['name']}"]


def test_group_with_a_source_keeps_the_fields_of_an_earlier_template() -> None:
    """The groups of an update in progress: the old one has two members, the new one four."""
    earlier = Template(
        POD_GROUP, {"name": "workers", "schedulingPolicy": {"gang": {"minCount": 2}}}, ""
    )
    old = GroupInstance("workers", "v1", source=earlier, labels={"revision": "v1"}, name="old")
    groups = [old, GroupInstance("workers", "v2", labels={"revision": "v2"})]
    objects = converge(gang("workers", 4), groups=groups)
    found = {
        one["metadata"]["labels"]["revision"]: (one["metadata"]["name"], gang_size(one["spec"]))
        for one in objects[1:]
    }
    assert found["v1"] == ("old", 2)
    assert found["v2"][1] == 4
    # Only the group without a source follows the tree.
    plan = ensure(objects, gang("workers", 6), groups)
    assert summarize(plan) == ["patch Workload", "patch PodGroup"]
    (resized,) = plan.operations[1:]
    assert isinstance(resized, PatchObject)
    assert resized.meta.labels == {"revision": "v2"}


def test_unwanted_group_stays_while_it_is_kept() -> None:
    root, both = gang("workers", 2), [GroupInstance("workers", one) for one in ("0", "1")]
    objects = converge(root, groups=both)
    name = ensure(objects, root, both).group_name("workers", "1")
    assert summarize(ensure(objects, root, both[:1])) == [f"delete PodGroup {name}"]
    assert ensure(objects, root, both[:1], kept=[name]).operations == ()


def test_members_that_are_still_to_run_are_published_below_the_size_only() -> None:
    objects = converge()
    for members, expected in ((2, "2"), (4, None), (0, None)):
        wanted = GroupInstance("workers", members_to_run=count_always(members))
        plan = ensure(objects, groups=[GroupInstance("driver"), wanted])
        changes = [one.change for one in plan.operations if isinstance(one, PatchObject)]
        text = {"metadata": {"annotations": {MEMBERS_TO_RUN_ANNOTATION: expected}}}
        assert changes == ([text] if expected else [])
    objects[-1]["metadata"]["annotations"] = {MEMBERS_TO_RUN_ANNOTATION: "2"}
    plan = ensure(objects, groups=[GroupInstance("driver"), wanted])
    assert [one.change for one in plan.operations if isinstance(one, PatchObject)] == [text]


@pytest.mark.parametrize(
    ("driver", "workers", "expected"), [(1, 3, None), (0, 3, "1"), (0, 0, None)]
)
def test_groups_that_are_still_to_run_are_published_at_the_gang_of_groups(
    driver: int, workers: int, expected: str | None
) -> None:
    sizes = {"driver": driver, "workers": workers}
    wanted = [GroupInstance(one, members_to_run=count_always(sizes[one])) for one in sizes]
    plan = ensure(converge(), groups=wanted)
    changes = {
        one.kind.name: one.change["metadata"]["annotations"][MEMBERS_TO_RUN_ANNOTATION]
        for one in plan.operations
        if isinstance(one, PatchObject)
    }
    assert changes.get("CompositePodGroup") == expected


def test_gang_of_groups_keeps_its_size_if_other_owners_have_some_of_the_groups() -> None:
    wanted = [GroupInstance("workers", members_to_run=count_always(4))]
    operations = ensure(converge(), groups=wanted, kept=["driver"]).operations
    assert not any(isinstance(one, PatchObject) for one in operations)


def test_user_workload_is_used_and_never_changed() -> None:
    theirs = store(WorkloadBuilder(tree(workers=2), EVERYTHING).build(OWNER, name="mine"))
    del theirs["metadata"]["ownerReferences"]
    plan = ensure([theirs])
    assert summarize(plan)[-1] == "create PodGroup workers"
    groups = [store(one.obj) for one in plan.operations if isinstance(one, CreateObject)]
    assert all(len(one["metadata"]["ownerReferences"]) == 1 for one in groups)
    assert groups[-1]["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    ready = ensure([theirs, *groups])
    assert ready.is_ready
    assert not ready.operations


def test_own_objects_give_way_to_the_users_unless_pods_have_started() -> None:
    ours = converge()
    theirs = store(WorkloadBuilder(tree(), EVERYTHING).build(OWNER, name="mine"))
    del theirs["metadata"]["ownerReferences"]
    plan = ensure([*ours, theirs])
    assert [line.split()[1] for line in summarize(plan)] == [
        "CompositePodGroup",
        "PodGroup",
        "PodGroup",
    ]
    assert summarize(ensure([ours[0], theirs])) == [
        f"delete Workload {ours[0]['metadata']['name']}"
    ]
    started = ensure([*ours, theirs], is_started=True)
    assert started.is_ready
    assert not started.operations
    assert started.fallback is not None
    assert started.fallback.reason == "AmbiguousWorkload"


def test_users_group_is_used_and_ours_gives_way() -> None:
    ours = converge()
    theirs = {**ours[-1], "metadata": {"name": "mine", "namespace": "team", "uid": "uid-mine"}}
    assert ensure([*ours[:-1], theirs]).group_name("workers") == "mine"
    plan = ensure([*ours, theirs])
    assert summarize(plan) == [f"delete PodGroup {ours[-1]['metadata']['name']}"]
    assert not plan.is_ready
    assert ensure([*ours, theirs], is_started=True).operations == ()


def test_objects_of_other_owners_are_ignored() -> None:
    foreign = converge()
    for one in foreign:
        one["metadata"]["ownerReferences"][0] = {
            **one["metadata"]["ownerReferences"][0],
            "uid": "uid-before",
        }
    assert summarize(ensure(foreign)) == ["create Workload"]


def test_each_instance_of_a_template_has_its_group_and_surplus_ones_are_deleted() -> None:
    root = gang("replica", 2)
    three = [GroupInstance("replica", str(number)) for number in range(3)]
    objects = converge(root, groups=three)
    assert len(objects) == 4
    plan = ensure(objects, root, groups=three[:1])
    assert [line.split()[0] for line in summarize(plan)] == ["delete", "delete"]
    assert plan.is_ready
    assert plan.group_name("replica", "0").startswith(f"{objects[0]['metadata']['name']}-replica-0")


def test_instances_of_a_composite_have_their_own_children() -> None:
    root = composite("replica", gang("leader", 1), gang("workers", 2), user=config(Gang(2)))
    wanted = [
        GroupInstance(name, number, parent_instance=number)
        for number in ("0", "1")
        for name in ("leader", "workers")
    ]
    objects = converge(root, groups=wanted)
    parents = {
        one["metadata"]["name"]: one["spec"].get("parentCompositePodGroupName")
        for one in objects[1:]
    }
    plan = ensure(objects, root, groups=wanted)
    assert plan.is_ready
    assert len(parents) == 6
    for number in ("0", "1"):
        assert parents[plan.group_name("workers", number)] == plan.group_name("replica", number)


def test_pods_never_join_another_group() -> None:
    root = gang("workers", 2)
    name = ensure(converge(root), root).group_name("workers")
    lost = GroupInstance("workers", pod_groups=frozenset({"other"}))
    plan = ensure([], root, [lost])
    assert plan.fallback is not None
    assert plan.fallback.reason == "SchedulingObjectsLost"
    plain = ensure([], root, [GroupInstance("workers", pod_groups=frozenset({""}))])
    assert plain.is_ready
    assert plain.fallback is None
    assert not plain.operations
    again = ensure([], root, [GroupInstance("workers", pod_groups=frozenset({name}))])
    assert summarize(again) == ["create Workload"]
    workload = converge(root)[:1]
    assert ensure(workload, root, [lost]).fallback == plan.fallback


def test_terminating_group_is_waited_for_unless_pods_are_in_it() -> None:
    root = gang("workers", 2)
    objects = converge(root)
    objects[1]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    plan = ensure(objects, root)
    assert not plan.is_ready
    assert not plan.operations
    used = GroupInstance("workers", pod_groups=frozenset({objects[1]["metadata"]["name"]}))
    assert ensure(objects, root, [used]).is_ready


def test_what_cannot_have_a_group_falls_back_with_a_reason() -> None:
    system = leaf("workers", config(Gang(2), priority_class_name="system-node-critical"))
    plan = ensure([], system)
    assert plan.is_ready
    assert plan.fallback is not None
    assert plan.fallback.reason == "PriorityTooHigh"
    unknown = ensure(converge(), groups=[GroupInstance("other")])
    assert unknown.fallback is not None
    assert unknown.fallback.reason == "TemplateNotFound"
    two = store(WorkloadBuilder(tree(), EVERYTHING).build(OWNER))
    malformed = ensure([two], gang("workers", 2))
    assert malformed.fallback is not None
    assert malformed.fallback.message.endswith(
        "has 0 PodGroupTemplates, a Training needs exactly 1"
    )
    with pytest.raises(Invalid):
        ensure([], gang("workers", 0))


def test_linked_child_gets_the_groups_of_a_composite_template() -> None:
    inner = composite("part", gang("driver", 1), gang("workers", 3), user=config(Gang(2)))
    root = composite("root", inner, user=config(Gang(1)))
    workload = store(WorkloadBuilder(root, EVERYTHING).build(OWNER))

    def plan(objects: list[Object], link: Link) -> EnsurePlan:
        return ensure_linked(CHILD, link, ObservedObjects.from_objects(objects))

    first = plan([workload], Link("part", "the-root"))
    assert [line.split()[-1] for line in summarize(first)] == ["part", "driver", "workers"]
    groups = [store(one.obj) for one in first.operations if isinstance(one, CreateObject)]
    assert groups[0]["spec"]["parentCompositePodGroupName"] == "the-root"
    assert groups[1]["spec"]["parentCompositePodGroupName"] == groups[0]["metadata"]["name"]
    assert plan([workload, *groups], Link("part", "the-root")).is_ready
    lost = plan([], Link("part"))
    assert lost.fallback is not None
    assert lost.fallback.reason == "ParentWorkloadNotFound"
    missing = plan([workload], Link("other"))
    assert missing.fallback is not None
    assert missing.fallback.reason == "TemplateNotFound"
    # The owners of other children, and of the parent itself, keep their groups.
    others = [store(one) for one in new_groups(workload, owners=[controller_reference(OWNER)])]
    assert plan([workload, *others, *groups], Link("part", "the-root")).operations == ()


def test_link_is_followed_to_the_first_ancestor_with_a_workload() -> None:
    workload = store(WorkloadBuilder(gang("workers", 2), EVERYTHING).build(OWNER))
    grandchild = {**CHILD, "metadata": {**CHILD["metadata"], "ownerReferences": []}}
    grandchild["metadata"]["ownerReferences"] = [
        {**controller_reference(CHILD), "uid": "uid-between", "name": "between"}
    ]
    plan = ensure_linked(
        grandchild,
        Link("workers"),
        ObservedObjects.from_objects([workload]),
        ancestors=[controller_reference(OWNER)],
    )
    assert summarize(plan) == ["create PodGroup workers"]


def test_deletion_takes_groups_before_their_workload_and_only_our_own() -> None:
    objects = converge()
    theirs = {**objects[-1], "metadata": {"name": "mine", "namespace": "team", "uid": "uid-mine"}}
    observed = ObservedObjects.from_objects([*objects, theirs])
    kinds = [one.kind.name for one in plan_deletion(OWNER, observed)]
    assert kinds == ["PodGroup", "PodGroup", "CompositePodGroup", "Workload"]
    kept = plan_deletion(OWNER, observed, keep_workload=True)
    assert [one.kind.name for one in kept] == kinds[:-1]
