"""Seals: by which the server knows again what it once handed out, and takes nothing else for it.

A sealed text names its bytes openly; nobody can change them, make others up, or show them for
another purpose than they were sealed for. Nothing of it is stored. `Signer` keeps the key.
"""

from __future__ import annotations

import base64
import binascii
import hmac

#: Bytes of a mark: more than anybody can try.
_MARK = 16


class Seal:
    """What a key seals, and what it opens again."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sealed(self, raw: bytes, purpose: str) -> str:
        """Bytes as a text, for one purpose."""
        return encoded(self._mark(raw, purpose) + raw)

    def opened(self, text: str, purpose: str) -> bytes | None:
        """The bytes of a text that was sealed here for that purpose; None of any other."""
        found = decoded(text)
        mark, raw = found[:_MARK], found[_MARK:]
        return raw if hmac.compare_digest(mark, self._mark(raw, purpose)) else None

    def _mark(self, raw: bytes, purpose: str) -> bytes:
        # Two digests, so that no purpose runs on into the bytes that follow it.
        key = hmac.digest(self._key, purpose.encode(errors="surrogatepass"), "sha256")
        return hmac.digest(key, raw, "sha256")[:_MARK]


def encoded(raw: bytes) -> str:
    """Bytes as a part of a token: the letters that need no escape in a URL or a header."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decoded(text: str) -> bytes:
    """Bytes of a part of a token; none if it is not written as such a part is."""
    try:
        raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        return b""
    # Another spelling of the same bytes is another token, and not ours.
    return raw if encoded(raw) == text else b""
