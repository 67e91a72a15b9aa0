"""The scheduler's configuration file: read, or refused in one sentence with exit code 2."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import click
import yaml

from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)


def load_configuration(path: Path) -> SchedulerConfiguration:
    """What a file asks for; whoever asks for what makes no difference is told so on stderr."""
    found = parse_configuration(_load_yaml(path))
    if isinstance(found, list):
        raise click.UsageError(f"{path}: {'; '.join(map(str, found))}")
    for note in found.notes:
        click.echo(f"Warning: {path}: {note}", err=True)
    return found


def _load_yaml(path: Path) -> object:
    try:
        found: object = yaml.load(path.read_text(), _UniqueKeyLoader)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise click.UsageError(f"{path}, line {line}: {error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise click.UsageError(f"{path} is no YAML text") from None
    return found


class _UniqueKeyLoader(yaml.SafeLoader):
    """The safe loader, minding names that stand twice: YAML would silently drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: list[object] = []
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{name} stands twice", problem_mark=key.start_mark
                )
            seen.append(name)
        return super().construct_mapping(node, deep)
