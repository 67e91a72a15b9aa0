"""Everything random: uids, generated names, jitter, secrets.

Passed in from the edges, so that a simulation draws all of it from one seed.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from typing import Protocol

#: No vowels and no look-alikes, so that a generated name spells nothing.
NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
#: How many numbers are drawn at once, of so many bytes each.
_BATCH_SIZE, _UUID_BYTES = 256, 16


class Random(Protocol):
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


class SystemRandom:
    """Lots that nobody can foretell."""

    def __init__(self) -> None:
        self._bits = _system_bits()

    def uid(self) -> str:
        """A random UUID."""
        return _uuid(next(self._bits))

    def suffix(self, length: int = 5) -> str:
        """Letters from the operating system's randomness."""
        return _encode_letters(next(self._bits), length)

    def between(self, low: float, high: float) -> float:
        """A number in that range."""
        return random.uniform(low, high)


class SeededRandom:
    """Lots that the same seed draws again, on any machine."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uid(self) -> str:
        """A UUID drawn from the seed."""
        return _uuid(self._random.getrandbits(128))

    def suffix(self, length: int = 5) -> str:
        """Letters drawn from the seed."""
        return "".join(self._random.choice(NAME_ALPHABET) for _ in range(length))

    def between(self, low: float, high: float) -> float:
        """A number in that range, drawn from the seed."""
        return self._random.uniform(low, high)


def _system_bits() -> Iterator[int]:
    """128 bits at a time. The system is asked for many at once: each time is a call into it."""
    while True:
        drawn = memoryview(secrets.token_bytes(_BATCH_SIZE * _UUID_BYTES))
        for at in range(0, len(drawn), _UUID_BYTES):
            yield int.from_bytes(drawn[at : at + _UUID_BYTES])


def _uuid(bits: int) -> str:
    """A UUID of version 4 out of 128 bits, of which it keeps 122."""
    digits = f"{bits & _FREE_BITS | _FIXED_BITS:032x}"
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(parts)


#: The version and the variant of a UUID stand in it; the rest is free.
_FREE_BITS = ~(0xF << 76 | 0x3 << 62)
_FIXED_BITS = 0x4 << 76 | 0x2 << 62


def _encode_letters(bits: int, length: int) -> str:
    """Letters out of so many bits that hardly any is likelier than another."""
    found = ""
    for _ in range(length):
        bits, at = divmod(bits, len(NAME_ALPHABET))
        found += NAME_ALPHABET[at]
    return found
