from __future__ import annotations

import pytest

from phalanx.api.core import Taint
from phalanx.sim.events import (
    AddNodes,
    CordonNode,
    CreateCompositePodGroup,
    CreateGang,
    CreateManifest,
    CreatePodGroup,
    CreatePods,
    DeleteTarget,
    EventTarget,
    FinishPods,
    ForceDeleteGroup,
    GroupOptions,
    RemoveNode,
    RemoveSchedulingGates,
    ScenarioEvent,
    ScenarioNode,
    ScenarioPodTemplate,
    SetMembersToRun,
    SetMinCount,
)
from phalanx.sim.fields import InvalidScenario
from phalanx.sim.scenario import Scenario, ScenarioMoment, parse_scenario

GPU = "nvidia.com/gpu"
DEFAULT_CAPACITY = {"cpu": "8", "memory": "32Gi", "pods": "110"}


def events(text: str) -> list[ScenarioEvent]:
    moments = parse_scenario(f"nodes: {{count: 2}}\n{text}").moments
    return [event for moment in moments for event in moment.events]


def rejection_message(text: str) -> str:
    with pytest.raises(InvalidScenario) as raised:
        parse_scenario(text)
    return str(raised.value)


def test_scenario_consists_of_nodes_and_timed_events() -> None:
    text = """
    seed: 7
    nodes: {count: 2, each: {gpu: 4}}
    at 1: {pod: alone, each: {cpu: 500m}}
    at 0: {gang: train, pods: 2, each: {gpu: 1}, run: 1m}
    until: 120
    """
    capacity = {**DEFAULT_CAPACITY, GPU: "4"}
    train = CreatePods(
        ("train-0", "train-1"), ScenarioPodTemplate({GPU: "1"}, run_seconds=60), "train"
    )
    assert parse_scenario(text) == Scenario(
        7,
        (ScenarioNode("node-0", capacity), ScenarioNode("node-1", capacity)),
        (
            ScenarioMoment(0, (CreateGang("train", 2, train),)),
            ScenarioMoment(1, (CreatePods(("alone",), ScenarioPodTemplate({"cpu": "500m"})),)),
        ),
        120,
    )


def test_scenario_ends_a_minute_after_its_last_event_by_default() -> None:
    assert parse_scenario("nodes: {}\nat 30: {pod: a}").until == 90
    assert parse_scenario("nodes: {}").until == 60


def test_feature_gates_can_be_disabled() -> None:
    gates = parse_scenario("nodes: {}\ngates: {GangScheduling: false}").gates
    assert not gates.is_enabled("GangScheduling")
    assert gates.is_enabled("GenericWorkload")
    assert "unrecognized feature gate: Warp" in rejection_message("nodes: {}\ngates: {Warp: true}")
    assert "gates.GangScheduling: expected true or false" in rejection_message(
        "nodes: {}\ngates: {GangScheduling: off-ish}"
    )


def test_times_may_have_units_and_fractions() -> None:
    text = "nodes: {}\nat 1.5: {pod: a}\nat 2m: {pod: b}\nat 90s: {pod: c}\nuntil: 1h"
    scenario = parse_scenario(text)
    assert [moment.at for moment in scenario.moments] == [1.5, 90, 120]
    assert scenario.until == 3600


def test_several_events_of_one_time_are_a_list() -> None:
    (moment,) = parse_scenario("nodes: {}\nat 0: [{pod: a}, {pod: b}]").moments
    assert moment.events == (
        CreatePods(("a",), ScenarioPodTemplate({})),
        CreatePods(("b",), ScenarioPodTemplate({})),
    )


def test_node_groups_have_names_labels_and_taints() -> None:
    text = """
    nodes:
      - {count: 2}
      - {name: fast, count: 1, labels: {disk: ssd}, taints: ["team=a:NoSchedule", "x:NoExecute"]}
      - {name: lonely, each: {memory: 64Gi, example.com/thing: 3}}
    """
    taints = (Taint("team", "a", "NoSchedule"), Taint("x", "", "NoExecute"))
    assert parse_scenario(text).nodes == (
        ScenarioNode("node-0", DEFAULT_CAPACITY),
        ScenarioNode("node-1", DEFAULT_CAPACITY),
        ScenarioNode("fast-0", DEFAULT_CAPACITY, {"disk": "ssd"}, taints),
        ScenarioNode("lonely", {**DEFAULT_CAPACITY, "memory": "64Gi", "example.com/thing": "3"}),
    )


def test_nodes_added_later_continue_the_numbering() -> None:
    (added,) = events("at 5: {add nodes: {count: 1}}")
    assert added == AddNodes((ScenarioNode("node-2", DEFAULT_CAPACITY),))


def test_members_that_join_continue_the_numbering_with_the_same_template() -> None:
    template = ScenarioPodTemplate({"cpu": "1"}, {"disk": "ssd"}, priority=5)
    _, joined, other = events(
        "at 0: {gang: a, pods: 2, min: 4, each: {cpu: 1}, where: {disk: ssd}, priority: 5}\n"
        "at 1: {join: a}\n"
        "at 2: {join: a, pods: 2, each: {cpu: 2}}"
    )
    assert joined == CreatePods(("a-2",), template, "a")
    assert other == CreatePods(
        ("a-3", "a-4"), ScenarioPodTemplate({"cpu": "2"}, {"disk": "ssd"}, priority=5), "a"
    )


def test_members_may_precede_their_group_and_a_group_its_members() -> None:
    early, group, alone, late = events(
        "at 0: {members: a, pods: 2, each: {cpu: 1}, priority: 5}\n"
        "at 1: {group: a, min: 2}\n"
        "at 2: {group: b, basic: true}\n"
        "at 3: {join: b}"
    )
    assert early == CreatePods(("a-0", "a-1"), ScenarioPodTemplate({"cpu": "1"}, priority=5), "a")
    assert group == CreatePodGroup("a", 2, priority=5)
    assert alone == CreatePodGroup("b", None)
    assert late == CreatePods(("b-0",), ScenarioPodTemplate({}), "b")


def test_pods_may_have_labels_gates_and_any_spec_field() -> None:
    (created,) = events("at 0: {pod: a, labels: {app: x}, gates: [one, two], spec: {hostname: h}}")
    template = ScenarioPodTemplate(
        {}, labels={"app": "x"}, gates=("one", "two"), spec={"hostname": "h"}
    )
    assert created == CreatePods(("a",), template)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("{finish: a}", FinishPods(EventTarget("a", True))),
        ("{finish: a-1}", FinishPods(EventTarget("a-1", False))),
        ("{delete: a}", DeleteTarget(EventTarget("a", True))),
        ("{set min: {gang: a, to: 1}}", SetMinCount("a", 1)),
        ("{set left: {gang: a, to: 1}}", SetMembersToRun("a", 1)),
        ("{ungate: a}", RemoveSchedulingGates(EventTarget("a", True))),
        ("{ungate: a-0}", RemoveSchedulingGates(EventTarget("a-0", False))),
        ("{drop group: a}", ForceDeleteGroup("a")),
        ("{group: a, min: 2}", CreatePodGroup("a", 2)),
        ("{cordon: node-0}", CordonNode("node-0", True)),
        ("{uncordon: node-0}", CordonNode("node-0", False)),
        ("{remove node: node-1}", RemoveNode("node-1")),
    ],
)
def test_events_refer_to_earlier_objects(text: str, event: ScenarioEvent) -> None:
    assert events(f"at 0: {{gang: a, pods: 2}}\nat 1: {text}")[1] == event


def test_gang_needs_all_members_unless_min_or_basic_is_set() -> None:
    gangs = events(
        "at 0: [{gang: a, pods: 3}, {gang: b, pods: 3, min: 2}, {gang: c, pods: 3, basic: true}]"
    )
    assert [gang.min_count for gang in gangs if isinstance(gang, CreateGang)] == [3, 2, None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[", "line 1: expected YAML, found"),
        ("5", "the scenario: expected names with values, found 5"),
        ("seed: 1", "nodes: expected names with values, found nothing"),
        ("nodes: {}\nseed: x", "seed: expected a whole number, found 'x'"),
        ("nodes: {count: 0}", "nodes.count: expected a number from 1 to 100000, found 0"),
        ("nodes: {count: true}", "nodes.count: expected a number from 1 to 100000, found true"),
        (
            "nodes: [{}, {colour: red}]",
            "nodes[1]: expected only count, each, labels, name, taints,",
        ),
        ("nodes: {each: {gpu: many}}", "nodes.each.gpu: expected a quantity such as 4, 500m or"),
        ("nodes: {each: {gpu: -1}}", "nodes.each.gpu: expected a quantity"),
        ("nodes: {each: {gpu: true}}", "nodes.each.gpu: expected a quantity"),
        ("nodes: {taints: team}", "nodes.taints: expected a taint such as team=a:NoSchedule"),
        ("nodes: {labels: {zone: 1}}", "nodes.labels.zone: expected text (in quotes, if it looks"),
        ("nodes: {name: A}", "nodes.name: expected a name such as train-a, found 'A'"),
        ("nodes: [{name: n}, {name: n}]", "nodes[1]: expected a name that was not used before,"),
        ("nodes: {}\nat noon: {pod: a}", "at noon: expected seconds such as 90, or 90s, 5m, 2h"),
        ("nodes: {}\nat 1: {pod: a}\nat 1s: {pod: b}", "at 1s: expected another time than that"),
        (
            "nodes: {}\nat 1: {pod: a}\nat 1: {pod: b}",
            "line 3: expected YAML, found 'duplicate field",
        ),
        ("nodes: {}\nat 1: {pod: a}\nuntil: 0", "until: expected a time not before the last"),
        ("nodes: {}\nsometimes: 1", "the scenario: expected only gates, nodes, seed, until, found"),
        ("nodes: {}\nat 0: {on: 1}", "at 0: expected names with values, found {True: 1}"),
        ("nodes: {}\nat 0: {explode: all}", "at 0: expected exactly one of gang, join, pod,"),
        ("nodes: {}\nat 0: {pod: a, finish: a}", "at 0: expected exactly one of gang, join, pod,"),
        ("nodes: {}\nat 0: {gang: a}", "at 0.pods: expected a number from 1 to 100000, found no"),
        ("nodes: {}\nat 0: {gang: a, pods: 1, run: 1.5s}", "at 0.run: expected whole seconds,"),
        ("nodes: {}\nat 0: {gang: a, pods: 1, basic: 1}", "at 0.basic: expected true or false,"),
        ("nodes: {}\nat 0: {gang: a, pods: 1, basic: true, min: 1}", "at 0.min: expected no min"),
        ("nodes: {}\nat 0: [{pod: a}, {pod: a}]", "at 0[1].pod: expected a name that was not used"),
        ("nodes: {}\nat 0: {gang: a, pods: 1}\nat 1: {pod: a-0}", "at 1.pod: expected a name that"),
        ("nodes: {}\nat 0: {finish: a}", "at 0.finish: expected a gang or a pod that came before"),
        ("nodes: {}\nat 0: {join: a}", "at 0.join: expected a gang that came before, found 'a'"),
        ("nodes: {}\nat 0: {cordon: b}", "at 0.cordon: expected a node that came before,"),
        ("nodes: {}\nat 0: {set min: {gang: b, to: 1}}", "at 0.set min.gang: expected a gang"),
        ("nodes: {}\nat 0: {set left: 1}", "at 0.set left: expected names with values, found 1"),
        ("nodes: {}\nat 0: {drop group: b}", "at 0.drop group: expected a gang that came before"),
        ("nodes: {}\nat 0: {ungate: b}", "at 0.ungate: expected a gang or a pod that came before"),
        ("nodes: {}\nat 0: {pod: a, spec: raw}", "at 0.spec: expected names with values, found"),
        ("nodes: {}\nat 0: {pod: a, gates: 1}", "at 0.gates: expected a name such as train-a"),
        (
            "nodes: {}\nat 0: [{group: a, min: 1}, {members: a}]",
            "at 0[1].members: expected a name that was not used before, found 'a'",
        ),
        ("nodes: &a [*a]", "nodes[0]"),
    ],
)
def test_invalid_scenario_is_rejected_with_a_one_line_message(text: str, expected: str) -> None:
    message = rejection_message(text)
    assert message.startswith(expected)
    assert "\n" not in message


def test_groups_may_have_a_parent_topology_and_disruption_mode() -> None:
    found = parse_scenario(
        "nodes: {count: 1}\n"
        "at 0:\n"
        "  - {tree: root, min: 2, topology: zone, whole: true, priority: 5}\n"
        "  - {gang: a, in: root, pods: 2, topology: rack, near: 'rack, *'}\n"
        "  - {group: b, in: root, basic: true}\n"
        "  - make: {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n"
    )
    tree, gang, group, make = found.moments[0].events
    assert tree == CreateCompositePodGroup(
        "root", 2, 5, GroupOptions(topology="zone", evict_whole=True)
    )
    assert isinstance(gang, CreateGang)
    assert gang.options == GroupOptions("root", "rack", "rack, *")
    assert group == CreatePodGroup("b", None, 0, GroupOptions("root"))
    assert isinstance(make, CreateManifest)
    assert make.manifest["kind"] == "ConfigMap"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("{tree: root, basic: true, min: 2}", "no min beside basic"),
        ("{tree: root, whole: 1}", "true or false"),
        ("{gang: a, pods: 1, topology: ''}", "a text"),
        ("{make: 3}", "names with values"),
    ],
)
def test_invalid_tree_event_is_rejected(event: str, expected: str) -> None:
    with pytest.raises(InvalidScenario, match=expected):
        parse_scenario(f"nodes: {{count: 1}}\nat 0: {event}\n")
