"""Load the scheduler's configuration file and the plugins of installed packages.

An invalid file or a broken package is a usage error (exit code 2).

A package declares its plugins as entry points of the group `phalanx.scheduler_plugins`. The name of
the entry point is the name of the plugin; its value is a `Plugin`, or a function that takes the
plugin's arguments and returns one. Loading imports the packages, so the pure scheduler gets the
plugins from here as values. Enabling them is up to the configuration.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click

from phalanx.cli.output import echo
from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)
from phalanx.scheduler.plugins.plugin import Plugin
from phalanx.scheduler.plugins.registry import PluginRegistry, out_of_tree_plugin
from phalanx.yaml_files import InvalidYaml, load_document

ENTRY_POINT_GROUP = "phalanx.scheduler_plugins"


class PluginLoadError(Exception):
    """A package with a scheduler plugin cannot be used; the message names the package."""


def load_configuration(path: Path, text: str | None = None) -> SchedulerConfiguration:
    """Load a KubeSchedulerConfiguration; print a warning for each field without effect.

    The file may name plugins of installed packages. `text` is its content, if that has been read.
    """
    try:
        document = load_document(_read_text(path) if text is None else text)
    except InvalidYaml as error:
        raise click.UsageError(f"{path}, {error}") from None
    configuration = parse_configuration(document.value, load_installed_plugins())
    if isinstance(configuration, list):
        causes = (
            f"line {document.find_line(cause.field)}: {cause}" if cause.field else str(cause)
            for cause in configuration
        )
        raise click.UsageError(f"{path}: {'; '.join(causes)}")
    for note in configuration.notes:
        echo(f"Warning: {path}: {note}", err=True)
    return configuration


def load_installed_plugins() -> tuple[Plugin, ...]:
    """Load the scheduler plugins of installed packages; a broken package is a usage error."""
    try:
        return load_plugins()
    except PluginLoadError as error:
        raise click.UsageError(str(error)) from error


def load_plugins() -> tuple[Plugin, ...]:
    """Load all installed out-of-tree plugins, sorted by name. Raises PluginLoadError."""
    found: dict[str, tuple[EntryPoint, Plugin]] = {}
    in_tree = PluginRegistry().names()
    for entry_point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        name = entry_point.name
        label = f'scheduler plugin "{name}" of package {_package_name(entry_point)}'
        if name in in_tree:
            raise PluginLoadError(f"{label}: Phalanx has a plugin of this name; choose another")
        if name in found:
            other = _package_name(found[name][0])
            raise PluginLoadError(f"{label}: package {other} has a plugin of this name too")
        try:
            found[name] = entry_point, out_of_tree_plugin(name, entry_point.load())
        except (TypeError, ValueError) as error:
            raise PluginLoadError(f"{label}: {entry_point.value}: {error}") from error
        except Exception as error:
            # The package's own code: any exception may come from it.
            text = f"{type(error).__name__}: {error}"
            raise PluginLoadError(f"{label}: cannot load {entry_point.value}: {text}") from error
    return tuple(plugin for _, plugin in found.values())


def _package_name(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist else entry_point.module


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{path} is not a text file") from None
