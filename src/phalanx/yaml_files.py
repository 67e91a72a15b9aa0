"""How the files of users are read as YAML: no field is dropped, and errors say where they are.

`load_yaml` returns the value of a text, `load_document` also the lines of its fields:

    text ─▶ load_document ─▶ YamlDocument.value, YamlDocument.find_line("cohorts[0].count")

Whatever is wrong with a text raises InvalidYaml, which names line and column.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import yaml

#: The steps of a path such as `cohorts[0].count`: an index or a name.
PATH_STEPS = re.compile(r"\[(\d+)\]|([^.\[\]$]+)")
_MATCH_INDEX = re.compile(r"\[(\d+)\]").match
_MERGE_TAG = "tag:yaml.org,2002:merge"


class InvalidYaml(ValueError):
    """A text is no valid YAML. The message says what is wrong, and where (`describe_error`)."""


def describe_error(error: yaml.YAMLError) -> str:
    """Say what is wrong in a YAML text, and where: `line 5, column 4: found duplicate key`."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error).partition("\n")[0]
    problem, mark = error.problem or error.context or "invalid YAML", error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The value of a YAML text, and where its fields are."""

    value: Any
    #: None if the text contains nothing.
    root: yaml.Node | None

    def find_line(self, path: str) -> int | None:
        """Return the line of a field such as `cohorts[0].count`, or of its nearest parent.

        None if the text contains nothing.
        """
        return None if self.root is None else _find_line(self.root, path)


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text, each of whose fields exists once. Raises InvalidYaml."""
    return load_document(text).value


def load_document(text: str) -> YamlDocument:
    """Read a YAML text, each of whose fields exists once. Raises InvalidYaml."""
    try:
        loader = UniqueKeyLoader(text)
        try:
            root = loader.get_single_node()
            return YamlDocument(None if root is None else loader.construct_document(root), root)
        except RecursionError:
            place = f"line {loader.line + 1}, column {loader.column + 1}"
            raise InvalidYaml(f"{place}: nested too deeply") from None
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        raise InvalidYaml(f"line {line}, column {column}: {describe_error(error)}") from None
    except yaml.YAMLError as error:
        raise InvalidYaml(describe_error(error)) from None


def find_line(text: str, path: str) -> int | None:
    """Return the line of a field of a YAML text, or of its nearest parent.

    None if the text is no YAML. To find the lines of many fields, keep a YamlDocument.
    """
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    return None if root is None else _find_line(root, path)


def _find_line(node: yaml.Node, path: str) -> int:
    line: int = node.start_mark.line + 1
    while path:
        index, found = _MATCH_INDEX(path), None
        if index and isinstance(node, yaml.SequenceNode) and int(index[1]) < len(node.value):
            found = node.value[int(index[1])]
            line, path = found.start_mark.line + 1, path[index.end() :]
        elif isinstance(node, yaml.MappingNode):
            # Names may contain dots (`nvidia.com/gpu`): the longest name that begins the path. Of
            # equal names, the last one counts.
            names = ((key, value) for key, value in node.value if _begins(path, key))
            key, found = max(reversed([*names]), key=lambda pair: len(pair[0].value), default=_NONE)
            if found is not None:
                line, path = key.start_mark.line + 1, path[len(key.value) :]
        if found is None:
            break
        node, path = found, path.removeprefix(".")
    return line


_NONE: tuple[Any, None] = (None, None)


def _begins(path: str, key: yaml.Node) -> bool:
    """Whether the first step of a path is this key."""
    is_name = isinstance(key, yaml.ScalarNode) and path.startswith(key.value)
    return is_name and path[len(key.value) :][:1] in ("", ".", "[")


class UniqueKeyLoader(yaml.SafeLoader):
    """The safe loader, which also rejects duplicate keys: YAML would silently drop the first."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build a value; one that does not exist, such as the date 2026-13-45, has its place."""
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                # Python refuses to print numbers of thousands of digits.
                str(value)
            return value
        except (ValueError, KeyError, AttributeError):
            # Explicit tags (`!!bool x`) fail in several ways.
            problem = f'"{str(node.value)[:40]}" is no valid {node.tag.rpartition(":")[2]}'
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a map, each of whose keys exists once."""
        seen: list[object] = []
        # The super class refuses nodes of other kinds; merged keys (`<<`) may be overridden.
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.tag == _MERGE_TAG:
                continue
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f'duplicate field "{name}"', problem_mark=key.start_mark
                )
            seen.append(name)
        return super().construct_mapping(node, deep)
