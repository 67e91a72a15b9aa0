"""The plugin in inner runs of pytest, and the examples of the documentation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Imported here: an inner run discards what it imports, and some modules cannot be imported twice.
from phalanx.testing import Served, Virtual
from tests.builders import pod, pod_group
from tests.cli.commands import phalanx

pytest_plugins = ("pytester",)

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "testing-controllers.md"
#: A code block of the document that names its file.
FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
USED = (Served, Virtual)

HALF = [pod_group("train", 2), pod("train-0", "train", on="node-0")]


def run(pytester: pytest.Pytester, source: str) -> pytest.RunResult:
    pytester.makepyfile(f"import pytest\n{source}")
    # The outer run has imported the plugins that the inner run would rewrite.
    warnings = ("-W", "error", "-W", "ignore:Module already imported")
    return pytester.runpytest_inprocess("-p", "no:randomly", *warnings, "--strict-markers")


def bind_half(more: str = "") -> str:
    """The source of a test that binds one member of a gang of two."""
    return (
        f'@pytest.mark.phalanx(nodes=1, without=["scheduler"]{more})\n'
        f"def test_bind(phalanx):\n    phalanx.apply(*{HALF!r})\n"
    )


def test_violated_invariant_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(pytester, bind_half())
    result.assert_outcomes(failed=1)
    violation = (
        "gang default/train was never placed, yet 1 of the 2 members that it needs are bound"
    )
    result.stdout.fnmatch_lines(["cluster invariants are violated:", violation])


def test_invariants_can_be_switched_off(pytester: pytest.Pytester) -> None:
    run(pytester, bind_half(", invariants=False")).assert_outcomes(passed=1)


def test_failed_test_shows_its_own_error(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "async def test_virtual(phalanx_virtual):\n    assert 1 == 2\n"
        "def test_real(phalanx):\n    phalanx.get('pod', 'none')\n",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["E * assert 1 == 2", 'E * phalanx.api.errors.NotFound: pods "none" not found']
    )
    result.stdout.no_fnmatch_line("*futures*")


def test_wrong_marker_is_an_error_in_one_line(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.phalanx(nods=3)\ndef test_it(phalanx): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ['@pytest.mark.phalanx of *::test_it: unknown setting "nods"; available: nodes, *']
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [("3", "settings are keyword arguments: nodes=3"), ("room={'cpu': 'many'}, nodes=1", "*")],
)
def test_wrong_settings_show_one_error_without_its_context(
    pytester: pytest.Pytester, settings: str, message: str
) -> None:
    result = run(pytester, f"@pytest.mark.phalanx({settings})\ndef test_it(phalanx): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{message}*"])
    result.stdout.no_fnmatch_line("*ExceptionGroup*")


def test_nearest_marker_wins(pytester: pytest.Pytester) -> None:
    source = (
        "pytestmark = pytest.mark.phalanx(nodes=1, virtual=True)\n"
        "@pytest.mark.phalanx(nodes=2)\n"
        "def test_it(phalanx):\n    assert len(phalanx.find('nodes')) == 2; phalanx.sleep(1)\n"
    )
    run(pytester, source).assert_outcomes(passed=1)


def test_phalanx_virtual_needs_an_async_test(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(phalanx_virtual): pass\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["a test that uses phalanx_virtual must be `async def`; *"])


def test_plugin_imports_nothing_until_a_test_uses_it() -> None:
    script = (
        "import sys, phalanx.testing.plugin\n"
        "print(*sorted(name for name in sys.modules if name.startswith('phalanx')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().split() == [
        "phalanx",
        "phalanx.testing",
        "phalanx.testing.plugin",
        "phalanx.version",
    ]


@pytest.mark.slow
def test_examples_of_the_documentation_pass(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in an activated environment: an example starts the program of kopf.
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    files = dict(FILE.findall(DOCUMENT.read_text()))
    for name, text in files.items():
        (pytester.path / name).write_text(text)
    tests = [name for name in files if name.startswith("test_")]
    assert len(tests) == 9
    # kr8s warns of versions that it does not know, lightkube leaves connections to the collector.
    ignored = (
        ":Kubernetes version",
        "::ResourceWarning",
        "::pytest.PytestUnraisableExceptionWarning",
    )
    filters = [
        part for text in ("error", *(f"ignore{one}" for one in ignored)) for part in ("-W", text)
    ]
    # A process of its own: the official client imports its modules when they are first used, and an
    # inner run in this process would discard them.
    done = pytester.runpytest_subprocess("-p", "no:randomly", *filters, "--strict-markers")
    # Three tests are of the clients, two share a control plane.
    done.assert_outcomes(passed=len(tests) + 3)


#: Another project: its own pytest settings and directories, and the installed package.
PROJECT = """\
[project]
name = "sample"
version = "0"

[tool.pytest.ini_options]
testpaths = ["checks"]
addopts = ["--strict-markers", "--strict-config"]
filterwarnings = ["error"]
"""
CHECKS = """\
import subprocess
import sys


def test_a_gang_starts_as_a_whole(phalanx):
    phalanx.nodes(2, cpu=4)
    phalanx.apply("job.yaml")
    phalanx.wait_for_all("pods", "Running", count=2)


def test_each_has_a_cluster_of_its_own(phalanx):
    assert phalanx.find("pods") == []


def test_our_commands_find_it(phalanx):
    phalanx.nodes(1, cpu=4)
    phalanx.apply("job.yaml")
    phalanx.wait_for_all("pods", "Running", count=2)
    command = [sys.executable, "-m", "phalanx", "queue", "--kubeconfig", phalanx.kubeconfig]
    assert "job/pair" in subprocess.run(command, capture_output=True, text=True).stdout
"""
PAIR = """\
apiVersion: batch/v1
kind: Job
metadata: {name: pair}
spec:
  parallelism: 2
  completions: 2
  scheduling: {schedulingPolicy: {gang: {}}}
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: registry.example/x:1, resources: {requests: {cpu: "2"}}}
"""


@pytest.mark.slow
def test_another_project_needs_only_the_package(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    for name, text in {
        "pyproject.toml": PROJECT, "checks/test_gang.py": CHECKS, "job.yaml": PAIR,
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_failed_tests_control_plane_is_kept_on_request(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(phalanx):\n    phalanx.nodes(1)\n    assert False\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "--phalanx-keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if "export KUBECONFIG=" in line)
            config = Path(line.strip().removeprefix("export KUBECONFIG="))
            shown = phalanx("top", "-o", "json", "--kubeconfig", str(config)).stdout
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
        finally:
            process.kill()
    assert [node["name"] for node in json.loads(shown)["nodes"]] == ["node-0"]
    assert "1 failed" in rest


def test_keeping_and_parallel_runs_exclude_each_other(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest_subprocess("--phalanx-keep", "-n", "2")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--phalanx-keep waits for ^C: use it without -n*"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listen", "is_started"), [("127.0.0.1:0", True), ("no.example:1", False)], ids=str
)
def test_recipe_for_other_languages_starts_and_ends_a_control_plane(
    tmp_path: Path, listen: str, is_started: bool
) -> None:
    (recipe,) = re.findall(r"^```bash\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    command = recipe.replace("go test ./...", "phalanx top --once").replace("127.0.0.1:0", listen)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"{command}wait"],
        cwd=tmp_path, env={"PATH": programs, "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("3 nodes, " if is_started else "Error: cannot listen on ")
