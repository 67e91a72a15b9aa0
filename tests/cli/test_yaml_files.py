"""How YAML of users is read: every error has its place, and every field its line."""

from __future__ import annotations

import pytest

from phalanx.yaml_files import InvalidYaml, find_line, load_document, load_yaml

TEXT = """\
workload:
- requests:
    cpu: 1
    nvidia.com/gpu: x
  nvidia.com: {gpu: 1}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {name: 2024-13-45}", 'line 1, column 10: "2024-13-45" is no valid timestamp'),
        ("a:\n  b: !!int x", 'line 2, column 6: "x" is no valid int'),
        ("a: !!bool x", 'line 1, column 4: "x" is no valid bool'),
        ("a: !!timestamp x", 'line 1, column 4: "x" is no valid timestamp'),
        ("a: 0x" + "f" * 5000, 'line 1, column 4: "0xffff'),
        ("a: 1\na: 2", 'line 2, column 1: duplicate field "a"'),
        ("a: [", "line 1, column 5: expected the node content, but found '<stream end>'"),
        (
            "b: 1\na: \x00",
            "line 2, column 4: unacceptable character #x0000: special characters are not allowed",
        ),
        ("[" * 3000, "line 1, column "),
    ],
)
def test_every_error_is_one_sentence_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidYaml) as error:
        load_yaml(text)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_nesting_that_is_too_deep_is_named() -> None:
    with pytest.raises(InvalidYaml, match="nested too deeply"):
        load_yaml("[" * 3000)
    assert find_line("[" * 3000, "[0]") is None


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("workload[0].requests.nvidia.com/gpu", 4),
        ("workload[0].requests.cpu", 3),
        ("workload[0].requests.memory", 2),
        ("workload[0].nvidia.com.gpu", 5),
        ("workload[7]", 1),
        ("the file", 1),
    ],
)
def test_field_has_its_line_or_that_of_its_nearest_parent(path: str, line: int) -> None:
    assert find_line(TEXT, path) == load_document(TEXT).find_line(path) == line


def test_text_without_content_has_no_lines() -> None:
    assert load_document("# nothing\n").find_line("workload") is None
    assert find_line("a: [", "a") is None
