"""Configuration of the documentation site: `make docs` writes it to build/site.

The source directory is the repository, so that links to README.md and the examples are the same in
the repository and on the site. The Python reference is made from docstrings.
"""

from sphinx.application import Sphinx

from phalanx import __version__

project = "Phalanx"
release = version = __version__
html_title = f"Phalanx {__version__}"
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
root_doc = "docs/site/index"
include_patterns = [
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md",
    "docs/**.md", "examples/README.md",
]  # fmt: skip
#: Headings become targets, as they are in a repository's browser.
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True}
#: Docstrings write code as `code`.
default_role = "code"
#: Names of keyboard keys and shell sessions that no highlighter knows are shown as they are.
suppress_warnings = ["misc.highlighting_failure"]


def setup(app: Sphinx) -> None:
    """Read docstrings as we write them."""
    app.connect("autodoc-process-docstring", mark_literal_blocks)


def mark_literal_blocks(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Show indented paragraphs as they are: they are tables of names or code."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()  # the docstring that NamedTuple gives to fields without one
    marked: list[str] = []
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("    ") and not before:
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked
