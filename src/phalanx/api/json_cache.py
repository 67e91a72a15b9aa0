"""Compact JSON as a cache key.

Pods of a gang are created with equal specs. Validation (`checks.cached`), defaulting and field
management cache their results by the JSON of the part that they processed.
"""

from __future__ import annotations

from typing import Any

import orjson

#: The number of entries of one cache, and the length of the longest key.
CACHE_SIZE, MAX_CACHED_BYTES = 256, 16 * 1024


def compact_json(value: Any) -> bytes:
    """Encode a value as JSON that occupies no more memory than its length."""
    # Copied: the bytes that orjson returns keep a buffer of many times their length.
    return bytes(memoryview(orjson.dumps(value)))
