"""Sources of randomness: uids, generated names, jitter.

Every component that needs randomness is given a `Random`, so that a simulation takes all of it from
one seed.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from typing import Protocol

#: No vowels and no similar-looking characters, so that a generated name spells no word.
NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
#: Numbers requested from the operating system at once, and bytes of each.
_BATCH_SIZE, _UUID_BYTES = 256, 16


class Random(Protocol):
    """A source of randomness."""

    def uid(self) -> str:
        """Return a new UUID as text."""
        ...

    def suffix(self, length: int = 5) -> str:
        """Return characters for the end of a generated name."""
        ...

    def between(self, low: float, high: float) -> float:
        """Return a number in this range, for jitter."""
        ...


class SystemRandom:
    """Unpredictable randomness from the operating system."""

    def __init__(self) -> None:
        self._bits = _system_bits()

    def uid(self) -> str:
        """Return a random UUID."""
        return _uuid(next(self._bits))

    def suffix(self, length: int = 5) -> str:
        """Return random characters."""
        return _encode_letters(next(self._bits), length)

    def between(self, low: float, high: float) -> float:
        """Return a random number in this range."""
        return random.uniform(low, high)


class SeededRandom:
    """Reproducible randomness: the same seed gives the same values on any machine."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uid(self) -> str:
        """Return the next UUID of the seed."""
        return _uuid(self._random.getrandbits(128))

    def suffix(self, length: int = 5) -> str:
        """Return the next characters of the seed."""
        return "".join(self._random.choice(NAME_ALPHABET) for _ in range(length))

    def between(self, low: float, high: float) -> float:
        """Return the next number of the seed in this range."""
        return self._random.uniform(low, high)


def _system_bits() -> Iterator[int]:
    """Yield 128 bits at a time; one system call serves many."""
    while True:
        buffer = memoryview(secrets.token_bytes(_BATCH_SIZE * _UUID_BYTES))
        for at in range(0, len(buffer), _UUID_BYTES):
            yield int.from_bytes(buffer[at : at + _UUID_BYTES])


def _uuid(bits: int) -> str:
    """Build a version 4 UUID from 128 bits, of which it keeps 122."""
    digits = f"{bits & _FREE_BITS | _FIXED_BITS:032x}"
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(parts)


#: A UUID contains its version and variant in fixed bits; the rest is random.
_FREE_BITS = ~(0xF << 76 | 0x3 << 62)
_FIXED_BITS = 0x4 << 76 | 0x2 << 62


def _encode_letters(bits: int, length: int) -> str:
    """Build characters from 128 bits: enough that all are equally likely."""
    letters = ""
    for _ in range(length):
        bits, at = divmod(bits, len(NAME_ALPHABET))
        letters += NAME_ALPHABET[at]
    return letters
