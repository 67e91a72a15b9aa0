"""Lines of a YAML document: where a field stands, for messages about files."""

from __future__ import annotations

import re

import yaml

#: The steps of a path such as `cohorts[0].count`: an index or a name.
PATH_STEPS = re.compile(r"\[(\d+)\]|([^.\[\]$]+)")


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
