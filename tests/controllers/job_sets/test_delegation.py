"""JobSets below a parent of another kind, whose Workload has a template for each of them.

The parent is a Widget, a custom resource that no controller of ours knows. It manages its children
as the controller of a TrainJob would: a Workload and a root group for all, and a JobSet that is
linked to one of the templates.
"""

from __future__ import annotations

from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    CUSTOM_RESOURCE_DEFINITION,
    JOB,
    POD,
    POD_GROUP,
    WORKLOAD,
)
from phalanx.api.wire import Object
from phalanx.builder import (
    All,
    Basic,
    Gang,
    Link,
    SchedulingConfig,
    Single,
    WorkloadBuilder,
    WorkloadItem,
    controller_reference,
    new_composite_pod_group,
    parse_parents,
)
from phalanx.builder.ownership import GROUP_TEMPLATE, PARENT_COMPOSITE
from tests.api.custom_resource_definitions import custom_resource_definition, served_version
from tests.builders import in_virtual_time
from tests.controllers.custom_resource_scenarios import FREE_FORM, WIDGET
from tests.controllers.job_sets.job_set_harness import (
    JobSetCluster,
    job_set,
    job_set_cluster,
    role,
)

REGISTERED = parse_parents("Widget.example.com")


def gang(name: str, size: int) -> WorkloadItem:
    return WorkloadItem(name, user=SchedulingConfig(policy=Gang(size)))


def tree(*parts: WorkloadItem) -> WorkloadItem:
    return WorkloadItem("training", user=SchedulingConfig(policy=Basic()), children=parts)


def trainer(workers: int = 4) -> WorkloadItem:
    """The template of a JobSet with two replicated Jobs."""
    return WorkloadItem(
        "trainer",
        user=SchedulingConfig(policy=Gang(2)),
        children=(gang("launcher", 1), gang("workers", workers)),
    )


async def create_parent(
    c: JobSetCluster, root: WorkloadItem, name: str = "llm"
) -> tuple[Object, str]:
    """Create a parent, its Workload and its root group; return it and the name of the group."""
    definition = custom_resource_definition(served_version(schema=FREE_FORM))
    await c.client.create(CUSTOM_RESOURCE_DEFINITION, definition)
    await c.settle()
    made = await c.client.create(WIDGET, {"metadata": {"name": "llm", "namespace": "default"}})
    owner = {**made, "apiVersion": WIDGET.api_version, "kind": WIDGET.name}
    workload = WorkloadBuilder(root, (Basic, Gang, Single, All)).build(owner)
    await c.client.create(WORKLOAD, workload)
    group = new_composite_pod_group(workload, root.name, owners=[controller_reference(owner)])
    await c.client.create(COMPOSITE_POD_GROUP, group)
    return owner, group["metadata"]["name"]


def roles(workers: int = 4) -> tuple[Object, Object]:
    return role("launcher"), role("workers", 2, workers // 2)


def groups_of_pods(pods: list[Object]) -> set[str]:
    return {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods}


@in_virtual_time
async def test_linked_job_set_runs_in_the_groups_of_its_parents_workload() -> None:
    async with job_set_cluster() as c:
        owner, root = await create_parent(c, tree(trainer()))
        meta = {
            "ownerReferences": [controller_reference(owner)],
            "annotations": Link("trainer", root).annotations(),
        }
        await c.create(job_set(*roles(), meta=meta))
        await c.settle(10)
        assert await c.running() == {"launcher": 1, "workers": 4}
        assert len(await c.objects(WORKLOAD)) == 1
        composites = {
            one["spec"]["workloadRef"]["templateName"]: one
            for one in await c.objects(COMPOSITE_POD_GROUP)
        }
        assert composites["trainer"]["spec"]["parentCompositePodGroupName"] == root
        below = composites["trainer"]["metadata"]["name"]
        assert {
            one["spec"]["workloadRef"]["templateName"]: one["spec"]["parentCompositePodGroupName"]
            for one in await c.objects(POD_GROUP)
        } == {"launcher": below, "workers": below}
        for one in await c.objects(JOB):
            template = one["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"]
            annotations = one["metadata"]["annotations"]
            assert annotations[GROUP_TEMPLATE] == template
            assert annotations[PARENT_COMPOSITE] == below


@in_virtual_time
async def test_linked_gang_larger_than_the_room_binds_nothing() -> None:
    async with job_set_cluster(1, cpu=4) as c:
        owner, root = await create_parent(c, tree(trainer()))
        meta = {
            "ownerReferences": [controller_reference(owner)],
            "annotations": Link("trainer", root).annotations(),
        }
        await c.create(job_set(*roles(), meta=meta))
        await c.settle(30)
        assert len(await c.objects(POD)) == 5
        assert await c.running() == {}


@in_virtual_time
async def test_restart_of_a_linked_job_set_has_new_groups() -> None:
    async with job_set_cluster() as c:
        owner, root = await create_parent(c, tree(trainer()))
        meta = {
            "ownerReferences": [controller_reference(owner)],
            "annotations": Link("trainer", root).annotations(),
        }
        await c.create(job_set(*roles(), meta=meta, failurePolicy={"maxRestarts": 1}))
        await c.settle(10)
        before = groups_of_pods(await c.objects(POD))
        await c.end("Failed", "workers", pods=1)
        await c.settle(30)
        assert (await c.get()).status.restarts == 1
        assert await c.running() == {"launcher": 1, "workers": 4}
        assert not before & groups_of_pods(await c.objects(POD))
        assert set(await c.names(POD_GROUP)) == groups_of_pods(await c.objects(POD))


@in_virtual_time
async def test_job_set_linked_to_a_template_of_pods_has_one_group() -> None:
    async with job_set_cluster() as c:
        owner, root = await create_parent(c, tree(gang("trainer", 5)))
        meta = {
            "ownerReferences": [controller_reference(owner)],
            "annotations": Link("trainer", root).annotations(),
        }
        await c.create(job_set(*roles(), meta=meta))
        await c.settle(10)
        assert await c.running() == {"launcher": 1, "workers": 4}
        assert groups_of_pods(await c.objects(POD)) == {*await c.names(POD_GROUP)}
        assert await c.group_sizes() == {"trainer": 5}
        # As pods succeed, the quorum of the gang becomes smaller.
        await c.end("Succeeded", "launcher")
        (group,) = await c.objects(POD_GROUP)
        assert group["metadata"]["annotations"]["phalanx.dev/members-to-run"] == "4"


@in_virtual_time
async def test_replicated_job_without_a_template_below_the_linked_one_is_reported() -> None:
    async with job_set_cluster() as c:
        owner, root = await create_parent(c, tree(trainer()))
        meta = {
            "ownerReferences": [controller_reference(owner)],
            "annotations": Link("trainer", root).annotations(),
        }
        await c.create(job_set(role("launcher"), role("other"), meta=meta))
        await c.settle(10)
        assert (await c.conditions())["SchedulingFallback"] == ("True", "TemplateNotFound")
        assert await c.running() == {"launcher": 1, "other": 1}


@in_virtual_time
async def test_link_in_the_template_of_a_job_is_followed_past_the_job_set() -> None:
    async with job_set_cluster(workload_parents=REGISTERED) as c:
        owner, root = await create_parent(c, tree(gang("workers", 2)))
        linked = {"annotations": Link("workers", root).annotations()}
        meta = {"ownerReferences": [controller_reference(owner)]}
        await c.create(job_set(role("workers", 2, 2, meta=linked), role("free"), meta=meta))
        await c.settle(10)
        assert await c.running() == {"workers": 4, "free": 1}
        groups = await c.objects(POD_GROUP)
        assert {one["spec"]["parentCompositePodGroupName"] for one in groups} == {root}
        assert [one["metadata"]["ownerReferences"][0]["kind"] for one in groups] == ["Job"] * 2
        assert {one["spec"]["workloadRef"]["templateName"] for one in groups} == {"workers"}


@in_virtual_time
async def test_job_set_finds_the_workload_of_a_controller_above_its_own() -> None:
    async with job_set_cluster(workload_parents=REGISTERED) as c:
        owner, root = await create_parent(c, tree(trainer()))
        meta = {"name": "between", "namespace": "default"}
        made = await c.client.create(
            WIDGET, {"metadata": {**meta, "ownerReferences": [controller_reference(owner)]}}
        )
        between = {**made, "apiVersion": WIDGET.api_version, "kind": WIDGET.name}
        linked = {
            "ownerReferences": [controller_reference(between)],
            "annotations": Link("trainer", root).annotations(),
        }
        await c.create(job_set(*roles(), meta=linked))
        await c.settle(10)
        assert await c.running() == {"launcher": 1, "workers": 4}
        assert await c.group_sizes() == {"launcher": 1, "workers": 4}


@in_virtual_time
async def test_job_set_of_a_registered_parent_without_a_link_has_no_groups() -> None:
    async with job_set_cluster(workload_parents=REGISTERED) as c:
        owner, _ = await create_parent(c, tree(trainer()))
        await c.create(job_set(*roles(), meta={"ownerReferences": [controller_reference(owner)]}))
        await c.settle(10)
        assert await c.running() == {"launcher": 1, "workers": 4}
        assert await c.objects(POD_GROUP) == []
        assert "SchedulingFallback" not in await c.conditions()
