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


def annotated(text: str, **more: str) -> ObjectMeta:
    return ObjectMeta("a", "default", annotations={STAGES: text, **more})


# ---- lifetimes -----------------------------------------------------------------------------------


def test_without_stages_a_pod_starts_at_once_and_runs_forever() -> None:
    assert stages_of(ObjectMeta("a", "default")).sample_lifetime("default/a") == PodLifetime(
        0, 0, None, 0, 0
    )


def test_a_lifetime_follows_the_stages() -> None:
    found = stages_of(annotated("{start: 2, ready: 1.5, run: 60, stop: 3}"))
    assert found.sample_lifetime("default/a") == PodLifetime(2.0, 1.5, 60.0, 3.0, 0)


def test_the_same_pod_and_seed_have_the_same_lifetime() -> None:
    stages = parse_stages(
        {"run": {"exponential": 30}, "start": {"uniform": [0, 9]}, "failure": 0.5}
    )
    other = parse_stages({"run": {"exponential": 30}, "start": {"uniform": [0, 9]}, "seed": 7})
    assert [stages.sample_lifetime(key) for key in MANY] == [
        stages.sample_lifetime(key) for key in MANY
    ]
    assert stages.sample_lifetime("default/a") != stages.sample_lifetime("default/b")
    assert stages.sample_lifetime("default/a").run != other.sample_lifetime("default/a").run


def test_a_sample_is_the_same_on_every_machine() -> None:
    lifetime = parse_stages({"run": {"uniform": [0, 100]}, "seed": 1}).sample_lifetime("default/a")
    assert lifetime.run == pytest.approx(23.5270223)


@pytest.mark.parametrize(
    ("duration", "mean", "deviation"),
    [
        ({"uniform": [20, 40]}, 30.0, 20 / 12**0.5),
        ({"exponential": 30}, 30.0, 30.0),
        ({"normal": [60, 5]}, 60.0, 5.0),
        ({"constant": 9}, 9.0, 0.0),
    ],
)
def test_samples_have_the_requested_distribution(
    duration: dict[str, Any], mean: float, deviation: float
) -> None:
    stages = [parse_stages({"start": duration}).sample_lifetime(key).start for key in MANY]
    assert statistics.mean(stages) == pytest.approx(mean, rel=0.1)
    assert statistics.pstdev(stages) == pytest.approx(deviation, rel=0.1)
    assert min(stages) >= 0


def test_the_failure_rate_is_met() -> None:
    stages = [
        parse_stages({"run": 1, "failure": 0.25, "exitCode": 3}).sample_lifetime(key)
        for key in MANY
    ]
    codes = [lifetime.exit_code for lifetime in stages]
    assert codes.count(3) == pytest.approx(500, rel=0.15)
    assert codes.count(0) + codes.count(3) == len(MANY)
    assert parse_stages({"failure": 1}).sample_lifetime("default/a").exit_code == 1


# ---- rules and annotations -----------------------------------------------------------------------


def test_the_first_matching_rule_applies() -> None:
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


def test_the_annotation_of_a_pod_overrides_rules() -> None:
    found = stages_of(annotated("{run: 5}"), parse_stage_rules([{"run": 1, "start": 9}]))
    assert found.sample_lifetime("x") == PodLifetime(run=5.0)


def test_run_seconds_is_the_short_form_of_a_constant_run() -> None:
    assert (
        stages_of(annotated("{start: 1, run: 5}", **{RUN_SECONDS: "8"})).sample_lifetime("x").run
        == 8.0
    )


#: Lists and maps of aliases that would be 5**13 numbers or fields long.
ALIASES = "start: [&a0 [1]" + "".join(
    f", &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 14)
) + "]"  # fmt: skip
MERGED_ALIASES = "start: [&a0 {x: 1}" + "".join(
    f", &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 5)}]}}" for n in range(1, 14)
) + "]"  # fmt: skip


# ---- invalid stages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "must be a map"),
        ("{", "invalid YAML"),
        ("{begin: 1}", "begin: unknown field; available: start, ready, run"),
        ("{start: soon}", "start: 'soon' is not a number of seconds"),
        ("{start: -1}", "start: -1 is not a number of seconds"),
        ("{start: true}", "start: True is not a number"),
        ("{run: {gamma: 1}}", "run: must be seconds, or one of constant, uniform"),
        ("{run: {uniform: [1]}}", "run: uniform takes 2 parameters: low, high"),
        ("{run: {uniform: [3, 1]}}", "run: uniform takes the lower bound first"),
        ("{run: .nan}", "run: nan is not a number"),
        ("{failure: 2}", "failure: 2 is not a number from 0 to 1"),
        ("{exitCode: 0}", "exitCode: 0 is not an integer from 1 to 255"),
        ("{seed: 1.5}", "seed: 1.5 is not an integer"),
        ("{start: 2001-13-45}", "invalid YAML"),
        (f"{{start: {'[' * 40}{']' * 40}}}", "start: [[[[[[[...]]]]]]] is not a number"),
        (f"{{start: {'[' * 480}{']' * 480}}}", "invalid YAML"),
        ("{run: 1, stop: [" + "9" * 200 + "]}", "stop: [99"),
        (" " * 1025, "longer than 1024 characters"),
        (ALIASES, "invalid YAML: aliases are not supported"),
        (MERGED_ALIASES, "invalid YAML: aliases are not supported"),
    ],
)
def test_invalid_stages_are_reported_with_their_field(text: str, message: str) -> None:
    with pytest.raises(BadStages) as error:
        stages_of(annotated(text))
    assert str(error.value).startswith(f"annotation phalanx.dev/stages: {message}")


@pytest.mark.parametrize("text", ["5s", "abc", "-5", "2.5", "", "²", "1" * 10])
def test_invalid_run_time_is_reported(text: str) -> None:
    with pytest.raises(BadStages) as error:
        stages_of(ObjectMeta(name="a", annotations={RUN_SECONDS: text}))
    assert str(error.value).startswith("annotation phalanx.dev/run-seconds: must be a number of se")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"run": 1}, "must be a list of rules"),
        ([{"run": 1}, {"run": "x"}], "[1].run: 'x' is not a number"),
        ([{"labels": ["x"]}], "[0].labels: must be a map"),
    ],
)
def test_invalid_rules_are_reported_with_their_index(rows: Any, message: str) -> None:
    with pytest.raises(BadStages) as error:
        parse_stage_rules(rows)
    assert str(error.value).startswith(message)
