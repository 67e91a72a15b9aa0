"""Load the scheduler's configuration file. An invalid file is a usage error (exit code 2)."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import click
import yaml

from phalanx.controllers.scheduling.plugin_loader import PluginLoadError, load_plugins
from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)
from phalanx.scheduler.plugins.plugin import Plugin


def load_configuration(path: Path) -> SchedulerConfiguration:
    """Load a KubeSchedulerConfiguration; print a warning for each field without effect.

    The file may name plugins of installed packages.
    """
    configuration = parse_configuration(_load_yaml(path), load_installed_plugins())
    if isinstance(configuration, list):
        raise click.UsageError(f"{path}: {'; '.join(map(str, configuration))}")
    for note in configuration.notes:
        click.echo(f"Warning: {path}: {note}", err=True)
    return configuration


def load_installed_plugins() -> tuple[Plugin, ...]:
    """Load the scheduler plugins of installed packages; a broken package is a usage error."""
    try:
        return load_plugins()
    except PluginLoadError as error:
        raise click.UsageError(str(error)) from error


def _load_yaml(path: Path) -> object:
    try:
        document: object = yaml.load(path.read_text(), _UniqueKeyLoader)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise click.UsageError(f"{path}, line {line}: {error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise click.UsageError(f"{path} is not a YAML file") from None
    return document


class _UniqueKeyLoader(yaml.SafeLoader):
    """The safe loader, which also rejects duplicate keys: YAML would silently drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: list[object] = []
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f'duplicate field "{name}"', problem_mark=key.start_mark
                )
            seen.append(name)
        return super().construct_mapping(node, deep)
