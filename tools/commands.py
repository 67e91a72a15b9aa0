"""Generates the command reference in docs/commands.md from the commands' own help.

    python -m tools.commands          writes it
    python -m tools.commands --check  checks whether it is current

Only the text between the two markers is replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from phalanx.cli.main import main as phalanx

DOCUMENT = Path(__file__).parent.parent / "docs" / "commands.md"
BEGIN, END = "<!-- commands: begin -->", "<!-- commands: end -->"
#: Line width, independent of the terminal.
WIDTH = 88


def reference() -> str:
    """Return the `--help` output of every command."""
    return "\n".join(line for text in _sections() for line in text)


def _sections() -> Iterator[list[str]]:
    root = _command_context(phalanx, None, "phalanx")
    for name in phalanx.list_commands(root):
        command = phalanx.get_command(root, name)
        assert command is not None
        yield from _command_section(command, root, name, mark="###")


def _command_section(
    command: click.Command, parent: click.Context, name: str, *, mark: str
) -> Iterator[list[str]]:
    context = _command_context(command, parent, name)
    text = [line.rstrip() for line in command.get_help(context).splitlines()]
    yield [f"{mark} {context.command_path}", "", "```text", *text, "```", ""]
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _command_section(found, context, inner, mark=f"{mark}#")


def _command_context(
    command: click.Command, parent: click.Context | None, name: str
) -> click.Context:
    return click.Context(
        command, parent, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )  # fmt: skip


def update_document(document: str) -> str:
    """Return the document with the present reference."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def main() -> int:
    """Write or check; return 1 if the document is not current."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    there = DOCUMENT.read_text()
    new = update_document(there)
    if parser.parse_args().check:
        return int(there != new)
    DOCUMENT.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
