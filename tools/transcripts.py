"""Executes the shell blocks of documents and compares their output with the documents.

`python -m tools.transcripts FILE…` runs every ```sh block of a document in one shell, in order,
with its own home directory and a copy of the examples whose workers use free ports. The output
(stdout) of a block must equal the ```text block that follows it, except for times, ports and
generated names. `--update` writes the output into the document. Blocks of other languages are not
executed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Seconds for all blocks of a document.
COMMAND_TIMEOUT = 120.0
_BLOCK = re.compile(
    r"^```sh\n(?P<lines>.*?)^```\n(?:\n*^```text\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
_END = "\x1e"
#: The ports of workers in the examples, which other processes may be using.
_WORKER_PORT = re.compile(r'(?<=MASTER_PORT, value: ")\d+')
_EXAMPLE = re.compile(r"(?<![\w/])examples/")
#: Patterns that vary between runs, and their placeholders.
_VARYING = (
    (re.compile(r"\b\d+(\.\d+)?( ?)(ms|s|m)\b"), "0s"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:6443"),
    (re.compile(r"\S*/\.local/state/"), "~/.local/state/"),
    (re.compile(r"(?<=-)[bcdfghjklmnpqrstvwxz2456789]{5}\b"), "xxxxx"),
    (re.compile(r"-(?=[a-z]*\d)[0-9a-z]{6,10}\b"), "-hash"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True, slots=True)
class Block:
    """A shell block, its expected output, if any, and its position in the document."""

    lines: str
    shown: str | None
    span: tuple[int, int]


def find_blocks(text: str) -> Iterator[Block]:
    """Yield the executable blocks of a document."""
    for match in _BLOCK.finditer(text):
        yield Block(match["lines"], match["shown"], match.span("shown"))


def run(found: Sequence[Block], home: Path) -> list[str]:
    """Run the blocks in one shell; return the output of each. The first failure ends the run."""
    script = "".join(f"{block.lines}\nprintf '{_END}'\n" for block in found)
    script = _EXAMPLE.sub(f"{copy_examples(home / 'examples')}/", script)
    clusters = "default tutorial"
    stop = f"for name in {clusters}; do phalanx down $name || true; done"
    down = f"trap '{stop} >/dev/null 2>&1' EXIT\n"
    done = subprocess.run(
        ["bash", "-e", "-c", down + script],
        cwd=ROOT, env=environment(home), capture_output=True, text=True, timeout=COMMAND_TIMEOUT,
        check=False,
    )  # fmt: skip
    printed = done.stdout.split(_END)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode} after:\n{printed[-1]}{done.stderr}")
    return printed[:-1]


def copy_examples(folder: Path) -> Path:
    """Copy the examples to a new directory, with free ports for their workers."""
    shutil.copytree(ROOT / "examples", folder)
    ports: dict[str, str] = {}
    for file in folder.glob("**/*.yaml"):
        text = file.read_text()
        for port in _WORKER_PORT.findall(text):
            if port not in ports:
                with socket.create_server(("127.0.0.1", 0)) as free:
                    ports[port] = str(free.getsockname()[1])
        file.write_text(_WORKER_PORT.sub(lambda match: ports[match[0]], text))
    return folder


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a user with Phalanx installed, on any free port."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {
        "PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "PHALANX_UP_LISTEN": "127.0.0.1:0",
    }  # fmt: skip


def normalize(text: str) -> str:
    """Replace what varies between runs by placeholders."""
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def differences(document: Path, home: Path) -> list[tuple[str, str]]:
    """Return the differences between documented and actual output."""
    found = list(find_blocks(document.read_text()))
    pairs = zip(found, run(found, home), strict=True)
    return [
        (normalize(block.shown), normalize(printed))
        for block, printed in pairs
        if block.shown is not None and normalize(block.shown) != normalize(printed)
    ]


def update(document: Path, home: Path) -> None:
    """Write the actual output into a document."""
    text = document.read_text()
    found = list(find_blocks(text))
    for block, printed in reversed(list(zip(found, run(found, home), strict=True))):
        if block.shown is not None:
            begin, end = block.span
            text = f"{text[:begin]}{printed.strip(chr(10))}\n{text[end:]}"
    document.write_text(text.replace(str(home), "~"))


def main() -> int:
    """Compare or update documents; return 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("documents", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--update", action="store_true", help="rewrite what the documents show")
    options = parser.parse_args()
    is_well = True
    for document in options.documents:
        with tempfile.TemporaryDirectory(prefix="phalanx-") as home:
            if options.update:
                update(document, Path(home))
                continue
            for shown, printed in differences(document, Path(home)):
                is_well = False
                sys.stdout.write(f"{document} shows:\n{shown}\nbut this is printed:\n{printed}\n\n")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
