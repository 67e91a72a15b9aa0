from __future__ import annotations

import statistics
from typing import Any

import pytest

from phalanx.api.meta import ObjectMeta
from phalanx.controllers.nodes.simulated_kubelet import (
    RUN_SECONDS,
    STAGES,
    BadStages,
    PodLifetime,
    StageDuration,
    StageRule,
    Stages,
    parse_stage_rules,
    parse_stages,
    stages_of,
)

MANY = [f"default/pod-{n}" for n in range(2_000)]


def said(text: str, **more: str) -> ObjectMeta:
    return ObjectMeta("a", "default", annotations={STAGES: text, **more})


# ---- lives ---------------------------------------------------------------------------------------


def test_whoever_says_nothing_starts_at_once_and_runs_for_ever() -> None:
    assert stages_of(ObjectMeta("a", "default")).sample_lifetime("default/a") == PodLifetime(
        0, 0, None, 0, 0
    )


def test_a_life_is_what_the_stages_say() -> None:
    found = stages_of(said("{start: 2, ready: 1.5, run: 60, stop: 3}"))
    assert found.sample_lifetime("default/a") == PodLifetime(2.0, 1.5, 60.0, 3.0, 0)


def test_the_same_pod_lives_the_same_life_under_the_same_seed() -> None:
    drawn = parse_stages({"run": {"exponential": 30}, "start": {"uniform": [0, 9]}, "failure": 0.5})
    other = parse_stages({"run": {"exponential": 30}, "start": {"uniform": [0, 9]}, "seed": 7})
    assert [drawn.sample_lifetime(who) for who in MANY] == [
        drawn.sample_lifetime(who) for who in MANY
    ]
    assert drawn.sample_lifetime("default/a") != drawn.sample_lifetime("default/b")
    assert drawn.sample_lifetime("default/a").run != other.sample_lifetime("default/a").run


def test_a_draw_is_the_same_on_every_machine() -> None:
    life = parse_stages({"run": {"uniform": [0, 100]}, "seed": 1}).sample_lifetime("default/a")
    assert life.run == pytest.approx(23.5270223)


@pytest.mark.parametrize(
    ("span", "mean", "deviation"),
    [
        ({"uniform": [20, 40]}, 30.0, 20 / 12**0.5),
        ({"exponential": 30}, 30.0, 30.0),
        ({"normal": [60, 5]}, 60.0, 5.0),
        ({"constant": 9}, 9.0, 0.0),
    ],
)
def test_what_is_drawn_is_distributed_as_asked(
    span: dict[str, Any], mean: float, deviation: float
) -> None:
    drawn = [parse_stages({"start": span}).sample_lifetime(who).start for who in MANY]
    assert statistics.mean(drawn) == pytest.approx(mean, rel=0.1)
    assert statistics.pstdev(drawn) == pytest.approx(deviation, rel=0.1)
    assert min(drawn) >= 0


def test_as_many_fail_as_the_rate_says() -> None:
    drawn = [
        parse_stages({"run": 1, "failure": 0.25, "exitCode": 3}).sample_lifetime(who)
        for who in MANY
    ]
    codes = [life.exit_code for life in drawn]
    assert codes.count(3) == pytest.approx(500, rel=0.15)
    assert codes.count(0) + codes.count(3) == len(MANY)
    assert parse_stages({"failure": 1}).sample_lifetime("default/a").exit_code == 1


# ---- who says so ---------------------------------------------------------------------------------


def test_the_first_rule_for_a_pod_counts() -> None:
    found = parse_stage_rules(
        [
            {"namespace": "lab", "labels": {"app": "train"}, "run": 1},
            {"labels": {"app": "train"}, "run": 2},
            {"start": 3},
        ]
    )
    assert found[0] == StageRule(
        Stages(run=StageDuration("constant", (1.0,))), "lab", (("app", "train"),)
    )

    def run(namespace: str, **labels: str) -> float | None:
        return stages_of(ObjectMeta("a", namespace, labels=labels), found).sample_lifetime("x").run

    assert (run("lab", app="train"), run("default", app="train")) == (1.0, 2.0)
    assert run("lab", app="serve") is None
    assert stages_of(ObjectMeta("a", "lab"), found).sample_lifetime("x").start == 3.0


def test_a_pods_own_word_counts_before_every_rule() -> None:
    found = stages_of(said("{run: 5}"), parse_stage_rules([{"run": 1, "start": 9}]))
    assert found.sample_lifetime("x") == PodLifetime(run=5.0)


def test_run_seconds_is_the_short_form() -> None:
    assert (
        stages_of(said("{start: 1, run: 5}", **{RUN_SECONDS: "8"})).sample_lifetime("x").run == 8.0
    )
    assert (
        stages_of(said("{start: 1, run: 5}", **{RUN_SECONDS: "soon"})).sample_lifetime("x").run
        == 5.0
    )


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[1]", "must be a map"),
        ("{", "is no YAML"),
        ("{begin: 1}", "begin: there is no such field; there are start, ready, run"),
        ("{start: soon}", "start: 'soon' is no number of seconds"),
        ("{start: -1}", "start: -1 is no number of seconds"),
        ("{start: true}", "start: True is no number"),
        ("{run: {gamma: 1}}", "run: must be seconds, or one of constant, uniform"),
        ("{run: {uniform: [1]}}", "run: uniform takes 2 figures: low, high"),
        ("{run: {uniform: [3, 1]}}", "run: uniform goes from the lower"),
        ("{run: .nan}", "run: nan is no number"),
        ("{failure: 2}", "failure: 2 is no rate from 0 to 1"),
        ("{exitCode: 0}", "exitCode: 0 is no whole number from 1 to 255"),
        ("{seed: 1.5}", "seed: 1.5 is no whole number"),
    ],
)
def test_stages_that_cannot_be_read_are_told_by_field(text: str, fault: str) -> None:
    with pytest.raises(BadStages) as told:
        stages_of(said(text))
    assert str(told.value).startswith(fault)


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ({"run": 1}, "must be a list of rules"),
        ([{"run": 1}, {"run": "x"}], "[1].run: 'x' is no number"),
        ([{"labels": ["x"]}], "[0].labels: must be a map"),
    ],
)
def test_rules_that_cannot_be_read_are_told_by_place(rows: Any, fault: str) -> None:
    with pytest.raises(BadStages) as told:
        parse_stage_rules(rows)
    assert str(told.value).startswith(fault)
