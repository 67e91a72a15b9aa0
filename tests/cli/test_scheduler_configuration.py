"""The scheduler's configuration file: valid and invalid files."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.scheduler.configuration.scheduler_configuration import parse_configuration
from phalanx.scheduler.plugins.plugin import FILTER
from phalanx.scheduler.plugins.registry import IN_TREE_PLUGINS
from tests.cli.commands import ROOT, first_line, phalanx, start_up

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
DOCS = (ROOT / "docs" / "scheduler-configuration.md").read_text()


def write(folder: Path, text: str) -> Path:
    path = folder / "scheduler.yaml"
    path.write_text(text)
    return path


def load_error(path: Path) -> str:
    with pytest.raises(click.UsageError) as raised:
        load_configuration(path)
    assert raised.value.exit_code == 2
    return raised.value.message


def test_field_without_effect_prints_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, f"{HEAD}parallelism: 2\nprofiles: [{{schedulerName: mine}}]\n")
    assert list(load_configuration(path).profiles.policies) == ["mine"]
    assert capsys.readouterr().err == (
        f"Warning: {path}: parallelism has no effect: every decision evaluates all nodes at once\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEAD}profile: []", ": line 3: profile: there is no such field"),
        ("", ": expected an object, got null"),
        ("kind: [", ", line 1, column 8: expected the node content, but found '<stream end>'"),
        (f"{HEAD}kind: other", ", line 3, column 1: duplicate field \"kind\""),
        ("a: \x00", ", line 1, column 4: unacceptable character #x0000: special characters are not"
         " allowed"),
        (f"{HEAD}when: 2026-13-45", ", line 3, column 7: \"2026-13-45\" is no valid timestamp"),
        ("a: &a [*a]", ': Invalid value: "…": contains itself'),
        ("a: !!python/object:os.system {}",
         ", line 1, column 4: could not determine a constructor for the tag "
         "'tag:yaml.org,2002:python/object:os.system'"),
        (f"{HEAD}? [a]\n: b", ", line 3, column 3: found unhashable key"),
    ],
)  # fmt: skip
def test_invalid_configuration_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    assert load_error(path) == f"{path}{message}"


def test_unreadable_configuration_is_rejected(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert load_error(missing) == f"cannot read {missing}: No such file or directory"
    assert load_error(tmp_path) == f"cannot read {tmp_path}: Is a directory"
    (tmp_path / "picture").write_bytes(b"\xff\xfe\xfd")
    assert load_error(tmp_path / "picture") == f"{tmp_path / 'picture'} is not a text file"
    (tmp_path / "nested").write_text("[" * 3000)
    assert load_error(tmp_path / "nested").endswith(": nested too deeply")


def test_up_rejects_an_invalid_configuration_with_exit_code_2(tmp_path: Path) -> None:
    bad = write(tmp_path, f"{HEAD}podMaxBackoffSeconds: soon")
    done = phalanx("up", "--data", ":memory:", "--config", str(bad))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        f"Error: {bad}: line 3: podMaxBackoffSeconds: expected an integer, got a string"
    )


@pytest.mark.slow
def test_up_starts_with_a_valid_configuration(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path)}
    good = write(tmp_path, f"{HEAD}podMaxBackoffSeconds: 60")
    with start_up("--nodes", "0", "--data", ":memory:", "--config", str(good), env=home) as process:
        assert first_line(process).startswith("ready ")


# ---- the documentation -------------------------------------------------------------------------


def test_example_of_the_documentation_is_valid() -> None:
    (example,) = re.findall(r"```yaml\n(apiVersion.*?)```", DOCS, re.DOTALL)
    assert not isinstance(parse_configuration(yaml.safe_load(example)), list)


def test_documentation_lists_every_plugin_with_its_weight() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w*) \| (\d*) \|", DOCS, re.MULTILINE)
    assert rows == [
        (
            plugin.name,
            "yes" if FILTER in plugin.extension_points else "",
            str(plugin.default_weight or ""),
        )
        for plugin in IN_TREE_PLUGINS
    ]
