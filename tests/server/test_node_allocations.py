from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.core import Pod
from phalanx.api.kinds import NODE, POD
from phalanx.api.resources import Amounts, pod_requests, sum_amounts
from phalanx.api.wire import Object
from phalanx.server.binding import get_allocated_amounts
from tests.builders import in_virtual_time, node, pod, share_of_examples
from tests.server.api import Api, ApiResponse

NODES = ("n1", "n2")
PODS = ("a", "b", "c", "d", "e")
#: The last one exceeds 64 bits in thousandths.
CPUS = ("1", "1500m", "3", "1e18")

#: Action, pods, node.
acts = st.lists(
    st.tuples(
        st.sampled_from(
            ("make", "make bound", "bind", "bind group", "end", "delete", "kill", "label", "keep")
        ),
        st.lists(st.sampled_from(PODS), min_size=1, max_size=4, unique=True),
        st.sampled_from(NODES),
        st.sampled_from(CPUS),
    ),
    max_size=25,
)


def found(api: Api, name: str) -> Object:
    """A pod including uncommitted writes, or one that does not exist."""
    record = api.store.pending(POD.store_key("default", name))
    missing = {"metadata": {"name": name, "uid": "none"}}
    return msgspec.json.decode(record.value) if record else missing


async def act(api: Api, what: str, pods: Sequence[str], where: str, cpu: str) -> ApiResponse:
    """Perform one action; most are refused, which must leave the allocations exact too."""
    name, path = pods[0], POD.url_path("default")
    match what:
        case "make":
            return await api.ask("POST", path, pod(name, cpu=cpu))
        case "make bound":
            return await api.ask("POST", path, pod(name, on=where, cpu=cpu))
        case "bind":
            return await api.bind(name, where)
        case "bind group":
            return await api.bind_group(*((found(api, one), where) for one in pods))
        case "end":
            ended = {"status": {"phase": "Succeeded"}}
            return await api.patch(POD, name, ended, part="status")
        case "delete":
            return await api.delete(POD, name)
        case "kill":
            return await api.delete(POD, name, {"gracePeriodSeconds": 0})
        case "keep":
            kept = {"metadata": {"finalizers": ["example.com/stay"] if cpu == "1" else []}}
            return await api.patch(POD, name, kept)
        case _:
            return await api.patch(POD, name, {"metadata": {"labels": {"cpu": cpu}}})


def used(api: Api, where: str) -> Amounts:
    """The resources of the pods of a node, counted from scratch."""
    pods = [msgspec.json.decode(r.value, type=Pod) for r in api.store.range(POD.store_prefix())]
    return sum_amounts(pod_requests(one) for one in pods if one.occupied_node == where)


@given(acts)
@in_virtual_time
async def test_allocations_are_exact_after_any_sequence_of_writes(
    acts: list[tuple[str, list[str], str, str]],
) -> None:
    api = await Api.start()
    await api.create(NODE, *(node(name) for name in NODES))
    for what, pods, where, cpu in acts:
        answer = await act(api, what, pods, where, cpu)
        assert answer.code < 500, answer.body
        assert {name: get_allocated_amounts(api.store, name) for name in NODES} == {
            name: used(api, name) for name in NODES
        }


@share_of_examples(0.5)
@given(acts)
@in_virtual_time
async def test_allocations_are_exact_after_concurrent_writes(
    acts: list[tuple[str, list[str], str, str]],
) -> None:
    api = await Api.start(latency=lambda: 0.5)
    await api.create(NODE, *(node(name) for name in NODES))
    answers = await asyncio.gather(*(act(api, *one) for one in acts))
    assert all(answer.code < 500 for answer in answers)
    for name in NODES:
        assert get_allocated_amounts(api.store, name) == used(api, name)


@share_of_examples(0.5)
@given(st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(CPUS)), min_size=1, max_size=12))
@in_virtual_time
async def test_group_bindings_never_exceed_the_resources_of_a_node(
    actions: list[tuple[str, str]],
) -> None:
    api = await Api.start(latency=lambda: 0.5)
    await api.create(NODE, *(node(name, cpu="4") for name in NODES))
    pods = await api.create(POD, *(pod(f"p{n}", cpu=cpu) for n, (_, cpu) in enumerate(actions)))
    await asyncio.gather(
        *(api.bind_group((one, where)) for one, (where, _) in zip(pods, actions, strict=True))
    )
    assert all(used(api, name).get("cpu", 0) <= 4000 for name in NODES)


@in_virtual_time
async def test_a_node_without_pods_has_no_record() -> None:
    api = await Api.start()
    await api.create(POD, pod("a", on="n1", cpu="1"))
    assert get_allocated_amounts(api.store, "n1") == {"cpu": 1000, "pods": 1}
    await api.delete(POD, "a", {"gracePeriodSeconds": 0})
    assert get_allocated_amounts(api.store, "n1") == {}
    assert list(api.store.range("/phalanx.dev/")) == []


@in_virtual_time
async def test_a_pod_that_is_being_deleted_is_counted_until_it_is_removed() -> None:
    api = await Api.start()
    await api.create(POD, pod("a", on="n1", cpu="1"))
    await api.delete(POD, "a")
    assert get_allocated_amounts(api.store, "n1") == {"cpu": 1000, "pods": 1}


@in_virtual_time
async def test_the_records_are_not_visible_in_the_api() -> None:
    api = await Api.start()
    await api.create(POD, pod("a", on="n1", cpu="1"))
    groups = (await api.ask("GET", "/apis")).body["groups"]
    resources = (await api.ask("GET", "/apis/phalanx.dev/v1alpha1")).body["resources"]
    assert "phalanx.dev" in [group["name"] for group in groups]
    served = ["groupbindings", "groupevictions", "leaserenewals"]
    assert [resource["name"] for resource in resources] == served
    assert (await api.ask("GET", "/apis/phalanx.dev/v1alpha1/ledger")).code == 404
