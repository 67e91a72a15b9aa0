"""How the configuration and scenario files of users are read as YAML: no field is dropped."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

_MERGE_TAG = "tag:yaml.org,2002:merge"


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
