"""What becomes of a value that is said under another name and in another form than it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.api.errors import Cause


@dataclass(frozen=True, slots=True)
class Turned:
    """The value as it is stored, and annotations for the object that has it in its spec.

    `namespace` is where what it refers to is said to be, which what is stored cannot say.
    """

    value: Any
    marks: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""


#: From a value to its stored form, or to what is wrong with it.
Turn = Callable[[Any], Turned | Sequence[Cause]]
