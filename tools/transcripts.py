"""Executes the shell blocks of documents and compares their output with the documents.

`python -m tools.transcripts FILE…` runs every ```sh block of a document in one shell, in order,
with its own home directory and a copy of the examples whose workers use free ports. The output
(stdout) of a block must equal the ```text block that follows it, except for times, ports and
generated names. `--update` writes the output into the document. Blocks of other languages are not
executed.

A slow machine changes no output: commands that wait get more time, and a command that only reads is
repeated while it prints something else than the document shows.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parent.parent
#: Seconds that a command which only reads is repeated for, and between two of its runs.
REPEAT_SECONDS, REPEAT_INTERVAL = 60.0, 0.25
_BLOCK = re.compile(
    r"^```sh\n(?P<lines>.*?)^```\n(?:\n*^```text\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
_END = "\x1e"
#: The ports of workers in the examples, which other processes may be using.
_WORKER_PORT = re.compile(r'(?<=MASTER_PORT, value: ")\d+')
#: Commands that wait for something, with a limit that no machine reaches.
_WAITING = (
    (re.compile(r"\bkubectl wait (?!.*--timeout)"), "kubectl wait --timeout=600s "),
    (re.compile(r"\bphalanx run (?!.*--timeout)"), "phalanx run --timeout=600 "),
)
#: Commands that can be repeated: they change nothing.
_READING = re.compile(r"(kubectl (get|logs)|phalanx (queue|why|what-if|check|status)) ")
_EXAMPLE = re.compile(r"(?<![\w/])examples/")
#: Patterns that vary between runs, and their placeholders.
_VARYING = (
    (re.compile(r"\b\d+(\.\d+)?( ?)(ms|s|m)\b"), "0s"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:6443"),
    (re.compile(r"\S*/\.local/state/"), "~/.local/state/"),
    (re.compile(r"(?<=-)[bcdfghjklmnpqrstvwxz2456789]{5}\b"), "xxxxx"),
    (re.compile(r"-(?=[a-z]*\d)[0-9a-z]{6,10}\b"), "-hash"),
    # Of two nodes whose pods end at the same time, the one that is free first.
    (re.compile(r"(?<=unlimited  ended 1/1 on )node-\d"), "node-0"),
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


def run(found: Sequence[Block], home: Path, *, expect: bool = True) -> list[str]:
    """Run the blocks in one shell; return the output of each. The first failure ends the run."""
    examples = copy_examples(home / "examples")
    printed: list[str] = []
    with Shell(home) as shell:
        for block in found:
            shown, output = normalize(block.shown or "").splitlines(), ""
            for command in filter(str.strip, block.lines.splitlines()):
                text = _EXAMPLE.sub(f"{examples}/", command)
                for pattern, words in _WAITING:
                    text = pattern.sub(words, text)
                until = time.monotonic() + REPEAT_SECONDS
                while True:
                    more = shell.run(text)
                    lines = normalize(output + more).splitlines()
                    if not expect or block.shown is None or lines == shown[: len(lines)]:
                        break
                    if not _READING.match(command) or time.monotonic() > until:
                        break
                    time.sleep(REPEAT_INTERVAL)
                output += more
            printed.append(output)
    return printed


class Shell:
    """A bash process that runs one command after the other."""

    def __init__(self, home: Path) -> None:
        self._errors = home / "stderr"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                ["bash", "-e"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                cwd=ROOT, env=environment(home), text=True, bufsize=1,
            )  # fmt: skip

    def __enter__(self) -> Self:
        stop = "for name in default tutorial; do phalanx down $name || true; done"
        self.run(f"trap '{stop} >/dev/null 2>&1' EXIT")
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()

    def run(self, command: str) -> str:
        """Run a command; return its output. Raises SystemExit if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # The command reads nothing: the rest of stdin are the next commands.
        self._process.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '{_END}\\n'\n")
        output: list[str] = []
        for line in self._process.stdout:
            if line.endswith(f"{_END}\n"):
                return "".join((*output, line[: -len(_END) - 1]))
            output.append(line)
        code, errors = self._process.wait(), self._errors.read_text()
        raise SystemExit(f"exit code {code} of {command}:\n{''.join(output)}{errors}")


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
    printed_blocks = run(found, home, expect=False)
    for block, printed in reversed(list(zip(found, printed_blocks, strict=True))):
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
