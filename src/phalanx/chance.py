"""Everything random: uids, generated names, jitter, secrets.

Passed in from the edges, so that a simulation draws all of it from one seed.
"""

from __future__ import annotations

import random
import secrets
from typing import Protocol

#: No vowels and no look-alikes, so that a generated name spells nothing.
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class Chance(Protocol):
    """A source of lots."""

    def uid(self) -> str:
        """A fresh UUID as text."""
        ...

    def suffix(self, length: int = 5) -> str:
        """Letters for the end of a generated name."""
        ...

    def between(self, low: float, high: float) -> float:
        """A number in that range, for jitter."""
        ...


class TrueChance:
    """Lots that nobody can foretell."""

    def uid(self) -> str:
        """A random UUID."""
        return _uuid(secrets.randbits(128))

    def suffix(self, length: int = 5) -> str:
        """Letters from the operating system's randomness."""
        return _letters(secrets.randbits(128), length)

    def between(self, low: float, high: float) -> float:
        """A number in that range."""
        return random.uniform(low, high)


class SeededChance:
    """Lots that the same seed draws again, on any machine."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uid(self) -> str:
        """A UUID drawn from the seed."""
        return _uuid(self._random.getrandbits(128))

    def suffix(self, length: int = 5) -> str:
        """Letters drawn from the seed."""
        return "".join(self._random.choice(ALPHABET) for _ in range(length))

    def between(self, low: float, high: float) -> float:
        """A number in that range, drawn from the seed."""
        return self._random.uniform(low, high)


def _uuid(bits: int) -> str:
    """A UUID of version 4 out of 128 bits, of which it keeps 122."""
    digits = f"{bits & _FREE | _FIXED:032x}"
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(parts)


#: The version and the variant of a UUID stand in it; the rest is free.
_FREE = ~(0xF << 76 | 0x3 << 62)
_FIXED = 0x4 << 76 | 0x2 << 62


def _letters(bits: int, length: int) -> str:
    """Letters out of so many bits that hardly any is likelier than another."""
    found = ""
    for _ in range(length):
        bits, at = divmod(bits, len(ALPHABET))
        found += ALPHABET[at]
    return found
