"""Scheduler plugins of installed packages: the one of docs/plugins.md, and broken ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml

from phalanx.cli.scheduler_configuration import (
    ENTRY_POINT_GROUP,
    PluginLoadError,
    load_configuration,
    load_plugins,
)
from phalanx.library import Cluster
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.plugins.load_scoring import MANY_NODES, columns_of
from phalanx.scheduler.plugins.plugin import LoadScore
from phalanx.scheduler.plugins.plugin_context import initial_context
from phalanx.scheduler.plugins.registry import out_of_tree_plugin
from tests.cli.commands import ROOT
from tests.scheduler.builders import cluster, entity, node, pod

DOCS = (ROOT / "docs" / "plugins.md").read_text()
FILES = dict(re.findall(r"^```\w+ title=(\S+)\n(.*?)^```", DOCS, re.DOTALL | re.MULTILINE))


@dataclass
class Site:
    """A directory on sys.path in which packages are installed."""

    folder: Path

    def install(self, package: str, entry_points: dict[str, str], **modules: str) -> None:
        """Put modules and the metadata of a package there, as pip does."""
        for name, source in modules.items():
            (self.folder / f"{name}.py").write_text(source)
        metadata = self.folder / f"{package.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        text = "\n".join([f"[{ENTRY_POINT_GROUP}]", *lines, ""])
        (metadata / "entry_points.txt").write_text(text)

    def install_documented(self) -> None:
        """Install the package of the documentation."""
        project = tomllib.loads(FILES["pyproject.toml"])["project"]
        points = project["entry-points"][ENTRY_POINT_GROUP]
        self.install(project["name"], points, prefer_label=FILES["prefer_label.py"])

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in sorted(set(sys.modules) - before):
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)):
            del sys.modules[name]


NODES = [
    node("a", {"example.com/disk": "hdd"}),
    node("b", {"example.com/disk": "nvme"}),
    node("c", {"example.com/tier": "fast"}),
    node("d"),
]


# ---- the documented plugin -----------------------------------------------------------------------


def test_documented_plugin_is_shorter_than_forty_lines() -> None:
    assert len(FILES["prefer_label.py"].splitlines()) < 40


def test_documented_plugin_is_loaded_and_enabled_by_its_configuration(site: Site) -> None:
    site.install_documented()
    path = site.write("scheduler.yaml", FILES["scheduler.yaml"])
    profiles = load_configuration(path).profiles
    one = entity(None, [pod("p", cpu="1")])
    policy = profiles.policy(one)
    assert {score.name: score.weight for score in policy.scores}["PreferLabel"] == 5
    decision = decide(one, cluster(NODES).snapshot(), policy)
    assert isinstance(decision, Placed)
    assert decision.bindings[0].node == "b"


def test_documented_plugin_with_default_arguments_and_weight(site: Site) -> None:
    site.install_documented()
    file = yaml.safe_load(FILES["scheduler.yaml"])
    del file["profiles"][0]["pluginConfig"]
    del file["profiles"][0]["plugins"]["score"]["enabled"][0]["weight"]
    policies = load_configuration(site.write("x.yaml", yaml.safe_dump(file))).profiles.policies
    (policy,) = policies.values()
    assert {score.name: score.weight for score in policy.scores}["PreferLabel"] == 2
    decision = decide(entity(None, [pod("p", cpu="1")]), cluster(NODES).snapshot(), policy)
    assert isinstance(decision, Placed)
    assert decision.bindings[0].node == "c"


def test_installed_plugin_is_off_by_default(site: Site) -> None:
    site.install_documented()
    head = "\n".join(FILES["scheduler.yaml"].splitlines()[:2])
    (policy,) = load_configuration(site.write("x.yaml", head)).profiles.policies.values()
    assert "PreferLabel" not in {score.name for score in policy.scores}


def test_command_loads_the_plugin_and_reports_its_invalid_argument(site: Site) -> None:
    site.install_documented()
    text = FILES["scheduler.yaml"].replace("example.com/disk", '""')
    path = site.write("scheduler.yaml", text)
    command = [sys.executable, "-m", "phalanx", "up", "--data", ":memory:", "--config", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(site.folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"Error: {path}: line 12: profiles[0].pluginConfig[0].args: label must not be empty"
    )


def test_documented_library_call_uses_the_plugin() -> None:
    names: dict[str, Any] = {
        "configuration": yaml.safe_load(FILES["scheduler.yaml"]),
        "objects": [
            *(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": one.metadata.name, "labels": dict(one.metadata.labels)},
                    "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
                }
                for one in NODES
            ),
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "p"},
                "spec": {"containers": [{"name": "c", "image": "x"}]},
            },
        ],
    }
    exec(FILES["prefer_label.py"], names)
    exec(documented_code("from phalanx import Cluster"), names)
    loaded: Cluster = names["cluster"]
    decision = loaded.decide("pod/p")
    assert isinstance(decision, Placed)
    assert decision.bindings[0].node == "b"


def test_documented_filter_rejects_nodes() -> None:
    names: dict[str, Any] = {"np": np}
    exec(documented_code("from phalanx.scheduler.plugins import Filter"), names)
    plugin = out_of_tree_plugin("Licensed", names["LICENSED"])
    snapshot = cluster([node("a", {"license": "x"}), node("b")]).snapshot()
    assert plugin.filter is not None
    ((reason, mask),) = plugin.filter.reject(initial_context(snapshot, shape_of(pod("p"))))
    assert (reason, mask.tolist()) == ("node(s) had no license", [False, True])


def test_documented_load_score_counts_pods() -> None:
    names: dict[str, Any] = {}
    exec(documented_code("from phalanx.scheduler.plugins import LoadScore"), names)
    plugin = out_of_tree_plugin("FewerPods", names["FEWER_PODS"])
    running = [pod(f"q{n}", on="a") for n in range(3)]
    snapshot = cluster([node("a"), node("b")], running).snapshot()
    assert isinstance(plugin.score, LoadScore)
    scorer = plugin.score.build_scorer(shape_of(pod("p")), snapshot.columns)
    assert scorer(columns_of(snapshot), MANY_NODES).tolist() == [97, 100]


def documented_code(beginning: str) -> str:
    """The only Python block of the documentation that begins like this."""
    (code,) = re.findall(
        rf"^```python\n({re.escape(beginning)}.*?)^```", DOCS, re.DOTALL | re.MULTILINE
    )
    return str(code)


# ---- other packages ------------------------------------------------------------------------------

PLUGIN = """
import numpy as np
from phalanx.scheduler.plugins import Plugin, StaticScore
PLUGIN = Plugin("Even", score=StaticScore(lambda snapshot, shape: np.zeros(len(snapshot))))
"""


def test_plugin_value_is_loaded(site: Site) -> None:
    site.install("even-nodes", {"Even": "even:PLUGIN"}, even=PLUGIN)
    assert [plugin.name for plugin in load_plugins()] == ["Even"]


def test_without_packages_there_are_no_plugins(site: Site) -> None:
    assert load_plugins() == ()


@pytest.mark.parametrize(
    ("name", "value", "source", "message"),
    [
        ("Bad", "bad:X", "import nothing_here", "cannot load bad:X: ModuleNotFoundError: No module"
         " named 'nothing_here'"),
        ("Bad", "bad:X", "", "cannot load bad:X: AttributeError: module 'bad' has no attribute"
         " 'X'"),
        ("Bad", "bad:X", "X = 1 / 0", "cannot load bad:X: ZeroDivisionError: division by zero"),
        ("Bad", "bad:X", "X = 7", "bad:X: is neither a Plugin nor a function but int"),
        ("NodePorts", "bad:X", "X = 7", "Phalanx has a plugin of this name; choose another"),
    ],
)  # fmt: skip
def test_broken_package_is_named_in_one_sentence(
    site: Site, name: str, value: str, source: str, message: str
) -> None:
    site.install("bad-plugins", {name: value}, bad=source)
    with pytest.raises(PluginLoadError) as raised:
        load_plugins()
    expected = f'scheduler plugin "{name}" of package bad-plugins: {message}'
    assert str(raised.value) == expected
    with pytest.raises(click.UsageError) as refused:
        load_configuration(site.write("scheduler.yaml", FILES["scheduler.yaml"]))
    assert (refused.value.message, refused.value.exit_code) == (expected, 2)


def test_two_packages_with_one_plugin_name_are_an_error(site: Site) -> None:
    site.install("even-nodes", {"Even": "even:PLUGIN"}, even=PLUGIN)
    site.install("odd-nodes", {"Even": "even:PLUGIN"})
    with pytest.raises(PluginLoadError) as raised:
        load_plugins()
    assert re.fullmatch(
        r'scheduler plugin "Even" of package (even|odd)-nodes: '
        r"package (even|odd)-nodes has a plugin of this name too",
        str(raised.value),
    )
