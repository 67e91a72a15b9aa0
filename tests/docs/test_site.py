from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The documents, without the pages that only the site has.
PAGES = sorted(
    path.relative_to(ROOT) for path in ROOT.glob("docs/**/*.md") if path.parent.name != "site"
)


@pytest.mark.slow
def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going",
        "--conf-dir", "docs/site", "--doctree-dir", str(tmp_path / "doctrees"), ".",
        str(tmp_path / "site"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    missing = [
        page for page in PAGES if not (tmp_path / "site" / page).with_suffix(".html").exists()
    ]
    assert missing == []
    assert "WorkloadBuilder" in (tmp_path / "site/docs/site/python.html").read_text()


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs/site/index.md").read_text()
    pages = [page for page in PAGES if page.parent.name != "decisions"]
    assert [page for page in pages if f"<../{page.stem}>" not in index] == []


def test_every_document_names_its_readers() -> None:
    guides = [page for page in PAGES if page.parent.name == "docs"]
    openings = {page: "\n".join((ROOT / page).read_text().splitlines()[:8]) for page in guides}
    assert [page for page, opening in openings.items() if "For " not in opening] == []
