"""Quotas are exact and never exceeded, whatever is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from fractions import Fraction

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.kinds import CONFIG_MAP, POD, RESOURCE_QUOTA, SERVICE, Kind
from phalanx.api.resources import exact_value
from phalanx.api.wire import Object
from phalanx.store.kv import StoreChange
from tests.builders import in_virtual_time, pod
from tests.server.api import Api
from tests.server.quota_fixtures import FINISHED_STATUS, config_map, post, quota, quota_of, service

PODS = ("a", "b", "c", "d")
QUOTAS = ("q", "r")
CPUS = ("500m", "1", "3")
HARDS: tuple[Object, ...] = (
    {"pods": "2"},
    {"pods": "3", "requests.cpu": "3500m"},
    {"limits.cpu": "4", "count/pods": "4"},
    {"configmaps": "1", "services.nodeports": "1", "count/resourcequotas": "2"},
    {},
)
SCOPES = ((), ("Terminating",), ("NotBestEffort",))

#: The initial quotas.
Limits = tuple[tuple[Object, tuple[str, ...]], ...]
limits = st.tuples(*(st.tuples(st.sampled_from(HARDS), st.sampled_from(SCOPES)) for _ in QUOTAS))
#: Action, object, CPU, limits and scopes.
Act = tuple[str, str, str, Object, tuple[str, ...]]


def acts_of(*what: str) -> st.SearchStrategy[list[Act]]:
    act = st.tuples(
        st.sampled_from(what), st.sampled_from(PODS), st.sampled_from(CPUS),
        st.sampled_from(HARDS), st.sampled_from(SCOPES),
    )  # fmt: skip
    return st.lists(act, min_size=10, max_size=30)


ACTS = (
    "make", "make", "make brief", "make plain", "end", "delete", "keep", "config", "config",
    "drop config", "service", "open", "edit", "edit", "drop quota", "quota",
)  # fmt: skip


async def set_limits(api: Api, limits: Limits) -> None:
    for name, (hard, scopes) in zip(QUOTAS, limits, strict=True):
        await post(api, RESOURCE_QUOTA, quota_of(name, hard, scopes))


async def act(api: Api, what: str, name: str, cpu: str, hard: Object, scopes: Iterable[str]) -> int:
    """Perform one action; many are refused, which must leave quotas exact too."""
    limited = quota_of(QUOTAS[PODS.index(name) % 2], hard, scopes)
    brief = {"activeDeadlineSeconds": 60}
    match what:
        case "make":
            answer = await post(api, POD, pod(name, cpu=cpu))
        case "make brief":
            answer = await post(api, POD, pod(name, cpu=cpu, spec=brief))
        case "make plain":
            answer = await post(api, POD, pod(name))
        case "hurry":
            answer = await api.patch(POD, name, {"spec": brief})
        case "end":
            answer = await api.patch(POD, name, FINISHED_STATUS, part="status")
        case "delete":
            answer = await api.delete(POD, name)
        case "keep":
            kept = {"metadata": {"finalizers": ["example.com/stay"] if cpu == "1" else []}}
            answer = await api.patch(POD, name, kept)
        case "config":
            answer = await post(api, CONFIG_MAP, config_map(name))
        case "drop config":
            answer = await api.delete(CONFIG_MAP, name)
        case "service":
            answer = await post(api, SERVICE, service(name))
        case "open":
            answer = await api.patch(SERVICE, name, {"spec": {"type": "NodePort"}})
        case "quota":
            answer = await post(api, RESOURCE_QUOTA, limited)
        case "edit":
            replaced = [{"op": "replace", "path": "/spec/hard", "value": hard}]
            answer = await api.patch(RESOURCE_QUOTA, limited["metadata"]["name"], replaced, "json")
        case _:
            answer = await api.delete(RESOURCE_QUOTA, limited["metadata"]["name"])
    return answer.code


def present(api: Api, kind: Kind) -> list[Object]:
    return [orjson.loads(record.value) for record in api.store.range(kind.store_prefix("default"))]


def count_usage(api: Api, limited: Object) -> dict[str, Fraction]:
    """The usage of a quota, counted from scratch in the simplest way."""
    scopes = limited["spec"].get("scopes", [])
    pods = [one for one in present(api, POD) if all(holds(scope, one) for scope in scopes)]
    alive = [one for one in pods if one["status"]["phase"] != "Succeeded"]
    request = [one["spec"]["containers"][0]["resources"] for one in alive]
    cpu = sum(exact_value(part.get("requests", {}).get("cpu", "0")) for part in request)
    others: Object = {}
    if not scopes:
        is_open = [one["spec"]["type"] == "NodePort" for one in present(api, SERVICE)]
        others = {
            "configmaps": len(present(api, CONFIG_MAP)), "services.nodeports": sum(is_open),
            "count/resourcequotas": len(present(api, RESOURCE_QUOTA)),
        }  # fmt: skip
    found = {
        "pods": len(alive), "count/pods": len(pods), "requests.cpu": cpu, "limits.cpu": cpu,
        **others,
    }  # fmt: skip
    return {name: Fraction(found.get(name, 0)) for name in limited["spec"].get("hard", {})}


def holds(scope: str, one: Object) -> bool:
    if scope == "Terminating":
        return "activeDeadlineSeconds" in one["spec"]
    return bool(one["spec"]["containers"][0]["resources"].get("requests"))


def inexact_quotas(api: Api) -> list[Object]:
    """The quotas whose status differs from the existing objects."""
    return [
        one for one in present(api, RESOURCE_QUOTA) if status_usage(one) != count_usage(api, one)
    ]


def status_usage(limited: Object) -> dict[str, Fraction]:
    return {name: exact_value(text) for name, text in limited["status"].get("used", {}).items()}


def is_overfilled(change: StoreChange) -> bool:
    """Whether a quota is exceeded more than before although its limit did not grow."""
    if change.before is None or change.after is None:
        return False
    before, after = orjson.loads(change.before.value), orjson.loads(change.after.value)
    hard = {name: exact_value(text) for name, text in after["spec"].get("hard", {}).items()}
    was, now = status_usage(before), status_usage(after)
    return before["spec"] == after["spec"] and any(
        now[name] > was[name] and now[name] > hard[name] for name in now
    )


@given(limits, acts_of(*ACTS, "hurry"))
@in_virtual_time
async def test_quotas_are_exact_after_any_sequence_of_writes(
    limits: Limits, acts: list[Act]
) -> None:
    api = await Api.start()
    await set_limits(api, limits)
    for one in acts:
        assert await act(api, *one) < 500
        assert inexact_quotas(api) == []


@given(limits, acts_of(*ACTS), st.integers(1, 8))
@in_virtual_time
async def test_quotas_are_exact_at_every_revision_and_never_exceeded_by_concurrent_writes(
    limits: Limits, acts: list[Act], together: int
) -> None:
    api = await Api.start(latency=lambda: 0.5)
    await set_limits(api, limits)
    wrong: list[Object] = []
    api.store.subscribe(lambda changes: wrong.extend(inexact_quotas(api)))
    for at in range(0, len(acts), together):
        codes = await asyncio.gather(*(act(api, *one) for one in acts[at : at + together]))
        assert all(code < 500 for code in codes)
    assert wrong == []
    prefix = RESOURCE_QUOTA.store_prefix("default")
    assert [change for change in api.store.changes(0, prefix) if is_overfilled(change)] == []


@settings(max_examples=50)
@given(st.lists(st.sampled_from(CPUS), min_size=1, max_size=20))
@in_virtual_time
async def test_concurrent_pods_fill_a_quota_exactly(cpus: list[str]) -> None:
    api = await Api.start(latency=lambda: 0.5)
    await api.create(RESOURCE_QUOTA, quota(pods="7", requests_cpu="5"))
    actions = (post(api, POD, pod(f"p{n}", cpu=cpu)) for n, cpu in enumerate(cpus))
    codes = [answer.code for answer in await asyncio.gather(*actions)]
    left, places, expected = Fraction(5), 7, []
    for cpu in map(exact_value, cpus):
        fits = cpu <= left and places > 0
        left, places = (left - cpu, places - 1) if fits else (left, places)
        expected.append(201 if fits else 403)
    assert codes == expected
    assert inexact_quotas(api) == []
