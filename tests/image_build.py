"""Executes a Dockerfile without a container engine, as far as ours needs it.

Every stage is an overlay over the file system of this machine, in a mount namespace of its own: RUN
is executed by a shell that is confined to the overlay, COPY writes to it, and nothing that a stage
writes is seen outside. A stage begins with the machine itself instead of the image that FROM names,
with a given Python first on the PATH; so the base image is not tried.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_CONTINUATION = re.compile(r"\\\n")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
#: Mounts an overlay, gives the user a way to the Python of the machine, and runs a command in it.
_RUN = """
mount -t overlay overlay -o "lowerdir=/,upperdir=$UPPER,workdir=$WORK" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
if [ "$READ_ONLY" ]; then
    mount -o remount,ro "$ROOT"
else
    mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
fi
exec env -i "$(command -v chroot)" --userspec="$IMAGE_USER" "$ROOT" /bin/sh -c "$COMMAND"
"""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a Dockerfile: its name, and the rest of its line."""

    name: str
    text: str


def parse_dockerfile(text: str) -> list[Instruction]:
    """Return the instructions; comments are left out and continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = _CONTINUATION.sub(" ", "\n".join(lines))
    found = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [Instruction(name.upper(), rest.strip()) for name, _, rest in found]


@dataclass(slots=True)
class ImageStage:
    """A stage of a build: its files, and the settings of the instructions up to now."""

    folder: Path
    environment: dict[str, str]
    directory: str = "/"
    user: str = "0:0"
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()

    @property
    def files(self) -> Path:
        """Where the files are that the stage has written."""
        return self.folder / "upper"

    def run(
        self, command: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the stage, as its user and in its directory, to its end."""
        with self.start(command, environment or {}) as process:
            out, errors = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, out, errors)

    def start(
        self, command: str, environment: Mapping[str, str], *, read_only: bool = False
    ) -> subprocess.Popen[str]:
        """Start a shell command in the stage; with `read_only` no file can be written."""
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        settings = {**self.environment, **environment}
        exports = "".join(
            f"export {name}={shlex.quote(value)}; " for name, value in settings.items()
        )
        variables = {
            "UPPER": str(self.files),
            "WORK": str(self.folder / "work"),
            "ROOT": str(self.folder / "root"),
            "IMAGE_USER": self.user,
            "COMMAND": f"{exports}cd {shlex.quote(self.directory)}; {command}",
            "READ_ONLY": "yes" if read_only else "",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-euc", _RUN],
            env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def copy(self, source: Path, target: str) -> None:
        """Copy a file or directory to a path of the stage, as COPY does."""
        path = self.files / str(Path(self.directory, target)).lstrip("/")
        if source.is_dir():
            shutil.copytree(source, path, symlinks=True, dirs_exist_ok=True)
            return
        path = path / source.name if target.endswith("/") else path
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, path)


@dataclass(slots=True)
class ImageBuild:
    """Builds the stages of a Dockerfile from a context directory; `python` has the interpreter."""

    context: Path
    folder: Path
    python: Path
    #: Settings of the machine that its package index needs, in RUN alone.
    run_environment: Mapping[str, str]
    stages: list[ImageStage] = field(default_factory=list)
    _names: dict[str, ImageStage] = field(default_factory=dict)
    _arguments: dict[str, str] = field(default_factory=dict)

    def build(self) -> ImageStage:
        """Execute all instructions; return the last stage."""
        for one in parse_dockerfile((self.context / "Dockerfile").read_text()):
            self._execute(one)
        return self.stages[-1]

    def _execute(self, one: Instruction) -> None:
        if one.name == "ARG":
            name, _, value = one.text.partition("=")
            self._arguments[name] = value
            return
        if one.name == "FROM":
            self._begin_stage(_expand(one.text, self._arguments))
            return
        stage = self.stages[-1]
        text = _expand(one.text, stage.environment) if one.name != "RUN" else one.text
        match one.name:
            case "WORKDIR":
                stage.directory = text
                (stage.files / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "RUN":
                done = stage.run(text, self.run_environment)
                assert done.returncode == 0, f"RUN {text}\n{done.stdout}{done.stderr}"
            case "COPY":
                self._copy(stage, text.split())
            case "ENV":
                stage.environment |= dict(word.split("=", 1) for word in shlex.split(text))
            case "USER":
                stage.user = text
            case "ENTRYPOINT":
                stage.entrypoint = json.loads(text)
            case "CMD":
                stage.command = json.loads(text)
            case unknown:
                raise AssertionError(f"the instruction {unknown} is not known")

    def _begin_stage(self, text: str) -> None:
        image, _, name = text.partition(" AS ")
        assert image.startswith("python:"), f"the base image is {image}"
        path = f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin"
        stage = ImageStage(self.folder / f"stage-{len(self.stages)}", {"PATH": path})
        stage.files.mkdir(parents=True)
        # The Python of the machine may be in a directory of root alone.
        done = stage.run(" && ".join(f"chmod a+x {one}" for one in list(self.python.parents)[:-1]))
        assert done.returncode == 0, done.stderr
        self.stages.append(stage)
        self._names[name or image] = stage

    def _copy(self, stage: ImageStage, words: list[str]) -> None:
        root = self.context
        if words[0].startswith("--from="):
            root = self._names[words.pop(0).removeprefix("--from=")].files
        *sources, target = words
        for source in sources:
            stage.copy(root / source.lstrip("/"), target)


def _expand(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: values.get(found[1], ""), text)
