"""How the files of users are read as YAML: no field is dropped, and errors say where they are."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

_MERGE_TAG = "tag:yaml.org,2002:merge"


def describe_error(error: yaml.YAMLError) -> str:
    """Say what is wrong in a YAML text, and where: `line 5, column 4: found duplicate key`."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error).partition("\n")[0]
    problem, mark = error.problem or error.context or "invalid YAML", error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


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
