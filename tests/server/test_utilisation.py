"""The utilisation over time: samples of the store, in rings of a fixed size."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from phalanx.api.core import Pod
from phalanx.api.kinds import NODE, POD
from phalanx.server import utilisation
from phalanx.server.utilisation import UtilisationHistory, UtilisationSample, UtilisationSampler
from phalanx.store.kv import StoreWrite
from tests.builders import in_virtual_time, node, pod
from tests.server.api import EPOCH, Api


def add_samples(history: UtilisationHistory, count: int) -> None:
    for at in range(count):
        time = EPOCH + at * utilisation.INTERVAL
        history.add(UtilisationSample(time, {"cpu": 1500, "x/gpu": at}, {"cpu": 4000, "x/gpu": 8}))


@in_virtual_time
async def test_a_sample_sums_nodes_and_the_requests_of_their_pods() -> None:
    api = await Api.start()
    await api.create(NODE, node("n0", cpu="4"), node("n1", cpu="8"))
    await api.create(POD, pod("a", on="n0", cpu="1500m"), pod("b", on="n1", cpu="1"), pod("c"))
    await api.patch(POD, "b", {"status": {"phase": "Succeeded"}}, part="status")
    found = await api.server.page_api.sampler.sample()
    assert (found.used["cpu"], found.total["cpu"]) == (1500, 12_000)
    assert (found.used["pods"], found.used["waiting pods"]) == (1, 1)


async def sample_anew(api: Api) -> UtilisationSample:
    """Return a sample of a sampler that has read nothing before."""
    store, clock = api.server.context.store, api.server.context.clock
    return await UtilisationSampler(store, clock, UtilisationHistory()).sample()


@pytest.mark.parametrize("batch", [1, 3, 200])
@in_virtual_time
async def test_a_later_sample_equals_one_that_reads_everything(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utilisation, "_BATCH", batch)
    api = await Api.start()
    sampler = api.server.page_api.sampler
    await api.create(NODE, node("n0", cpu="4"), node("n1", cpu="8"))
    await api.create(POD, *(pod(name, on="n0", cpu="1") for name in "abc"), pod("waits"))
    assert await sampler.sample() == await sample_anew(api)
    await api.patch(POD, "a", {"status": {"phase": "Failed"}}, part="status")
    await api.patch(POD, "b", {"metadata": {"labels": {"x": "y"}}})
    await api.delete(POD, "c", gracePeriodSeconds=0)
    await api.delete(NODE, "n1")
    await api.create(POD, pod("d", on="n0", cpu="250m"), pod("e"))
    await api.delete(POD, "e", gracePeriodSeconds=0)
    found = await sampler.sample()
    assert found == await sample_anew(api)
    assert (found.used["cpu"], found.total["cpu"], found.used["waiting pods"]) == (1250, 4000, 1)


@in_virtual_time
async def test_a_later_sample_decodes_only_what_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, decoded = await Api.start(), list[bytes]()
    await api.create(POD, *(pod(f"p{at}") for at in range(20)))
    await api.server.page_api.sampler.sample()
    decode = utilisation._decode_pod

    def record(value: bytes) -> Pod:
        decoded.append(value)
        return decode(value)

    monkeypatch.setattr(utilisation, "_decode_pod", record)
    await api.patch(POD, "p3", {"metadata": {"labels": {"x": "y"}}})
    await api.patch(POD, "p3", {"metadata": {"labels": {"x": "z"}}})
    await api.server.page_api.sampler.sample()
    assert len(decoded) == 2


@in_virtual_time
async def test_a_sample_after_compaction_or_many_changes_reads_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = await Api.start()
    sampler, store = api.server.page_api.sampler, api.server.context.store
    await api.create(NODE, node("n0", cpu="4"))
    await sampler.sample()
    await api.create(POD, pod("a", on="n0", cpu="1"))
    store.compact(store.revision)
    assert (await sampler.sample()).used["cpu"] == 1000
    monkeypatch.setattr(utilisation, "_MAX_CHANGES", 2)
    await api.create(POD, *(pod(name, on="n0", cpu="1") for name in "bcde"))
    assert (await sampler.sample()).used["cpu"] == 5000


@in_virtual_time
async def test_an_unreadable_object_counts_as_nothing() -> None:
    api = await Api.start()
    store = api.server.context.store
    await api.create(NODE, node("n0", cpu="4"))
    key = NODE.store_key("", "broken")
    await store.commit([StoreWrite(key, lambda revision: b'{"status": 5}', 0)])
    assert (await sample_anew(api)).total["cpu"] == 4000


@in_virtual_time
async def test_the_sampler_adds_a_sample_every_interval() -> None:
    api = await Api.start()
    await api.create(NODE, node("n0", cpu="4"))
    sampling = asyncio.create_task(api.server.page_api.sampler.run())
    await asyncio.sleep(2.5 * utilisation.INTERVAL)
    sampling.cancel()
    answer = await api.ask("GET", "/phalanx/v1/utilisation")
    times = [point[0] for point in answer.body["points"]]
    assert [time - times[0] for time in times] == [
        0,
        utilisation.INTERVAL,
        2 * utilisation.INTERVAL,
    ]
    column = 1 + 2 * answer.body["resources"].index("cpu")
    assert answer.body["points"][0][column : column + 2] == [0.0, 4.0]
    later = await api.ask("GET", "/phalanx/v1/utilisation", query={"since": times[1]})
    assert [point[0] for point in later.body["points"]] == times[2:]
    malformed = await api.ask("GET", "/phalanx/v1/utilisation", query={"since": "x"})
    assert len(malformed.body["points"]) == 3


def test_a_history_keeps_an_hour_finely_and_a_day_coarsely() -> None:
    history = UtilisationHistory()
    add_samples(history, 3 * utilisation.RECENT)
    points = history.render()["points"]
    gaps = {round(after[0] - before[0]) for before, after in pairwise(points)}
    assert gaps == {15, 60}
    assert points == sorted(points)
    assert points[-1][0] - points[0][0] == (3 * utilisation.RECENT - 1) * utilisation.INTERVAL


def test_the_size_of_a_history_is_limited() -> None:
    history = UtilisationHistory()
    add_samples(history, 2 * utilisation.COARSE * utilisation.COARSE_STEP)
    total = {f"x/{at}": 1 for at in range(50)}
    history.add(UtilisationSample(EPOCH * 2, {}, total))
    rendered = history.render()
    assert len(rendered["points"]) <= utilisation.RECENT + utilisation.COARSE
    assert len(rendered["resources"]) == 9
    assert all(len(point) == 19 for point in rendered["points"])
