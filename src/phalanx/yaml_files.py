"""How the files of users are read as YAML: no field is dropped, and errors say where they are."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

#: The steps of a path such as `cohorts[0].count`: an index or a name.
PATH_STEPS = re.compile(r"\[(\d+)\]|([^.\[\]$]+)")
_MERGE_TAG = "tag:yaml.org,2002:merge"


def describe_error(error: yaml.YAMLError) -> str:
    """Say what is wrong in a YAML text, and where: `line 5, column 4: found duplicate key`."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error).partition("\n")[0]
    problem, mark = error.problem or error.context or "invalid YAML", error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


def find_line(text: str, path: str) -> int | None:
    """Return the line of a field such as `cohorts[0].count`, or of its nearest parent.

    None if the text is no YAML.
    """
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError:
        return None
    if node is None:
        return None
    line: int = node.start_mark.line + 1
    for index, name in PATH_STEPS.findall(path):
        found = None
        if isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            found = node.value[int(index)]
            line = found.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode) and name:
            for key, value in node.value:
                if key.value == name:
                    found, line = value, key.start_mark.line + 1
        if found is None:
            break
        node = found
    return line


class UniqueKeyLoader(yaml.SafeLoader):
    """The safe loader, which also rejects duplicate keys: YAML would silently drop the first."""

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
