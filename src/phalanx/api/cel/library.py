"""All functions that an expression may call, by name and by the way they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.api.cel.collections import COLLECTIONS
from phalanx.api.cel.functions import Function
from phalanx.api.cel.networks import NETWORKS
from phalanx.api.cel.optionals import OPTIONALS
from phalanx.api.cel.quantities import QUANTITIES
from phalanx.api.cel.standard import STANDARD
from phalanx.api.cel.texts import TEXTS
from phalanx.api.cel.times import TIMES
from phalanx.api.cel.versions import VERSIONS

_ALL = [
    *STANDARD, *TEXTS, *TIMES, *COLLECTIONS, *QUANTITIES, *NETWORKS, *VERSIONS, *OPTIONALS,
]  # fmt: skip


def _by_name(*, member: bool) -> Mapping[str, Sequence[Function]]:
    found: dict[str, list[Function]] = {}
    for function in _ALL:
        if function.member == member:
            found.setdefault(function.name, []).append(function)
    return found


#: Called on a value, with a dot.
METHODS = _by_name(member=True)
#: Called by their name alone.
FUNCTIONS = _by_name(member=False)
