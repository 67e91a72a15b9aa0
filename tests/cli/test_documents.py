"""Documents whose shell blocks are run and must print what the documents show."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.cli.commands import ROOT
from tools.transcripts import copy_examples, differences, find_blocks, normalize

DOCUMENTS = ("README.md", "docs/tutorial.md", "examples/README.md")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


@pytest.mark.timeout(1800)
@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_shows_what_its_commands_print(name: str, tmp_path: Path) -> None:
    for tool in ("bash", "kubectl", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on the PATH")
    assert differences(ROOT / name, tmp_path) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_has_commands_with_output(name: str) -> None:
    assert any(block.shown for block in find_blocks((ROOT / name).read_text()))


def test_every_example_is_in_a_document() -> None:
    shown = (ROOT / "examples" / "README.md").read_text()
    numbered = sorted(path.name for path in (ROOT / "examples").glob("0*"))
    assert len(numbered) >= 6
    assert all(f"phalanx run -f examples/{name} " in shown for name in numbered)


def test_transcripts_ignore_times_ports_and_generated_names() -> None:
    first = "ready https://127.0.0.1:6443 kubeconfig /home/a/.local/state/phalanx\n a-x2x4b   3s "
    second = "ready https://127.0.0.1:99 kubeconfig ~/.local/state/phalanx\na-bbbbb 12s"
    assert normalize(first) == normalize(second)
    assert normalize("node-0 (3)") != normalize("node-1 (3)")


def test_examples_of_transcripts_use_free_ports(tmp_path: Path) -> None:
    port = re.compile(r'MASTER_PORT, value: "(\d+)"')
    ports = [
        set(port.findall((folder / "tutorial" / name).read_text()))
        for folder in (ROOT / "examples", copy_examples(tmp_path / "examples"))
        for name in ("plain.yaml", "gang.yaml")
    ]
    assert [len(each) for each in ports] == [2, 2, 2, 2]
    assert (ports[0], ports[2]) == (ports[1], ports[3])
    assert not ports[0] & ports[2]


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]),
    ids=lambda path: str(path.relative_to(ROOT)),
)  # fmt: skip
def test_every_link_has_a_target(path: Path) -> None:
    links = [found[0] for found in LINK.findall(path.read_text())]
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []
