"""JSON that is kept: the words by which something is known again.

Members of a gang come with the same words, and much that is found out of one of them need not be
found out of the next (`checks.once`, `comparison`, `defaults`).
"""

from __future__ import annotations

from typing import Any

import orjson

#: How many texts are remembered for one purpose, and how long each may be.
CACHE_SIZE, MAX_CACHED_BYTES = 256, 16 * 1024


def compact_json(value: Any) -> bytes:
    """A value as JSON that takes no more memory than it has bytes."""
    # Copied: what the encoder returns keeps a buffer of many times its length.
    return bytes(memoryview(orjson.dumps(value)))
