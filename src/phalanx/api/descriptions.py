"""What types and fields are for, as `kubectl explain` tells it: one sentence each, in our words.

Package data, read when a client first asks for OpenAPI. The sentences of a group serve all its
versions: those of `batch.v1.Job` stand in `glossary/batch.txt`. A type begins its line, its fields
follow indented:

    Job: Runs pods until enough of them have succeeded or too many have failed.
      suspend: Whether the Job is held; setting it stops the pods, clearing it starts them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

_FOLDER: Final = resources.files("phalanx.api") / "glossary"

#: The fields that every kind begins with, unless the glossary says more of one.
HEAD: Final[Mapping[str, str]] = {
    "apiVersion": "Group and version of the API that the object is written in.",
    "kind": "What sort of object it is.",
    "metadata": "The object's name, labels, owners and history.",
}


def descriptions(name: str) -> Mapping[str, str]:
    """The sentences of a definition's fields, by field; that of the definition itself at ""."""
    group, own = name.split(".")[0], name.split(".")[-1]
    return glossary(group).get(own, {})


@cache
def glossary(group: str) -> Mapping[str, Mapping[str, str]]:
    """All sentences of a group, by type and field; none for a group that is not served."""
    file, entries = _FOLDER / f"{group}.txt", dict[str, dict[str, str]]()
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        name, _, text = line.partition(": ")
        if not name.startswith(" "):
            owner, name = name, ""
        entries.setdefault(owner, {})[name.strip()] = text
    return entries
