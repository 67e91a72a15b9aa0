"""Templates of objects with expressions of Go."""

from __future__ import annotations

import pytest

from phalanx.sim.workloads.object_template import ObjectTemplate
from phalanx.sim.workloads.workload import InvalidTrace

TEMPLATE = """\
metadata:
  name: pod-{{.Index}}
  labels: {zone: "zone-{{Mod .Index 3}}", quoted: '{{ "a b" }}'}
spec:
  group: gang-{{DivideInt .Index .size}}
  minCount: {{.size}}
  last: {{SubtractInt (MultiplyInt .size 2) 1}}
  half: {{DivideFloat .size 2}}
"""


def test_expressions_are_filled_in() -> None:
    template = ObjectTemplate("pod.yaml", TEMPLATE)
    rendered = template.render({"Index": 7, "size": 3})
    assert rendered == {
        "metadata": {"name": "pod-7", "labels": {"zone": "zone-1", "quoted": "a b"}},
        "spec": {"group": "gang-2", "minCount": 3, "last": 5, "half": 1.5},
    }
    assert template.render({"Index": 2, "size": 3})["spec"]["group"] == "gang-0"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: {{.Count}}", 'pod.yaml, line 2: unknown parameter ".Count"; available: Index'),
        ("a: {{Mod .Index 0}}", "pod.yaml, line 1: division by zero"),
        ('a: {{AddInt .Index "x"}}', "pod.yaml, line 1: x is not a number"),
    ],
)
def test_value_that_cannot_be_computed_names_file_and_line(text: str, reason: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        ObjectTemplate("pod.yaml", text).render({"Index": 1})
    assert str(error.value) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a:\n- {{if .Index}}", 'pod.yaml, line 2: "if" is not supported in templates; available'),
        ("a: {{Mod .Index}}", "pod.yaml, line 1: Mod needs 2 arguments, not 1"),
        ("a: {{AddInt (Mod .Index 3}}", "pod.yaml, line 1: a parenthesis is not closed"),
        ("a: {{.Index | quote}}", 'pod.yaml, line 1: cannot read the expression ".Index | quote"'),
        ("a: {{.Index)}}", 'pod.yaml, line 1: cannot read the expression ".Index)"'),
        ("a: [", "pod.yaml, line 1, column 5: expected the node content"),
        ("a: 1\nb: 2\na: 3", 'pod.yaml, line 3, column 1: duplicate field "a"'),
        ("- a", "pod.yaml: not a Kubernetes object: must be a map"),
    ],
)
def test_template_that_cannot_be_read_names_file_and_line(text: str, reason: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        ObjectTemplate("pod.yaml", text)
    assert str(error.value).startswith(reason)
