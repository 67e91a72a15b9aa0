"""The scheduler's configuration file: what is understood, and what is refused in a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.scheduler.configuration.profiles import PLUGINS
from phalanx.scheduler.configuration.scheduler_configuration import parse_configuration
from tests.cli.commands import ROOT, first_line, phalanx, start_up

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
DOCS = (ROOT / "docs" / "scheduler-configuration.md").read_text()


def written(folder: Path, text: str) -> Path:
    path = folder / "scheduler.yaml"
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(click.UsageError) as refused:
        load_configuration(path)
    assert refused.value.exit_code == 2
    return refused.value.message


def test_a_file_is_read_and_what_makes_no_difference_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"{HEAD}parallelism: 2\nprofiles: [{{schedulerName: mine}}]\n")
    assert list(load_configuration(path).profiles.policies) == ["mine"]
    assert capsys.readouterr().err == (
        f"Warning: {path}: parallelism has no effect: a decision looks at all nodes at once\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{HEAD}profile: []", ": profile: there is no such field"),
        ("", ": expected names with values, got nothing"),
        ("kind: [", ", line 1: expected the node content, but found '<stream end>'"),
        (f"{HEAD}kind: other", ", line 3: kind stands twice"),
        ("a: \x00", " is no YAML text"),
        ("a: &a [*a]", ': Invalid value: "…": is nested without end'),
        ("a: !!python/object:os.system {}", ", line 1: could not determine a constructor for the "
         "tag 'tag:yaml.org,2002:python/object:os.system'"),
        (f"{HEAD}? [a]\n: b", ", line 3: found unhashable key"),
    ],
)  # fmt: skip
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    assert refusal(path) == f"{path}{said}"


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert refusal(missing) == f"cannot read {missing}: No such file or directory"
    assert refusal(tmp_path) == f"cannot read {tmp_path}: Is a directory"
    (tmp_path / "picture").write_bytes(b"\xff\xfe\xfd")
    assert refusal(tmp_path / "picture") == f"{tmp_path / 'picture'} is no YAML text"


def test_up_refuses_a_bad_file_with_exit_code_two(tmp_path: Path) -> None:
    bad = written(tmp_path, f"{HEAD}podMaxBackoffSeconds: soon")
    done = phalanx("up", "--data", ":memory:", "--config", str(bad))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        f"Error: {bad}: podMaxBackoffSeconds: expected a whole number, got text"
    )


def test_up_starts_with_a_good_one(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path)}
    good = written(tmp_path, f"{HEAD}podMaxBackoffSeconds: 60")
    with start_up("--nodes", "0", "--data", ":memory:", "--config", str(good), env=home) as process:
        assert first_line(process).startswith("ready ")


# ---- what the documentation says -----------------------------------------------------------------


def test_the_example_of_the_documentation_is_understood() -> None:
    (example,) = re.findall(r"```yaml\n(apiVersion.*?)```", DOCS, re.DOTALL)
    assert not isinstance(parse_configuration(yaml.safe_load(example)), list)


def test_the_documentation_lists_every_plugin_with_its_weight() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w*) \| (\d*) \|", DOCS, re.MULTILINE)
    assert rows == [
        (plugin.name, "yes" if plugin.filters else "", str(plugin.weight or ""))
        for plugin in PLUGINS
    ]
