"""Everything random: uids, generated names, jitter, secrets.

Passed in from the edges, so that a simulation draws all of it from one seed.
"""

from __future__ import annotations

import random
import secrets
import uuid
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
        return str(uuid.uuid4())

    def suffix(self, length: int = 5) -> str:
        """Letters from the operating system's randomness."""
        return "".join(secrets.choice(ALPHABET) for _ in range(length))

    def between(self, low: float, high: float) -> float:
        """A number in that range."""
        return random.uniform(low, high)


class SeededChance:
    """Lots that the same seed draws again, on any machine."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uid(self) -> str:
        """A UUID drawn from the seed."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def suffix(self, length: int = 5) -> str:
        """Letters drawn from the seed."""
        return "".join(self._random.choice(ALPHABET) for _ in range(length))

    def between(self, low: float, high: float) -> float:
        """A number in that range, drawn from the seed."""
        return self._random.uniform(low, high)
