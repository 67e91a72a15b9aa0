from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.server.security.signing import HmacSigner, Signer, base64url_decode, base64url_encode

SIGNER = HmacSigner(b"the key")


@given(st.binary(max_size=64), st.text(max_size=20), st.text(max_size=20))
def test_signature_verifies_with_its_own_key_and_purpose_only(
    raw: bytes, one: str, two: str
) -> None:
    text = SIGNER.sign(raw, one)
    assert SIGNER.verify(text, one) == raw
    assert (SIGNER.verify(text, two) is None) == (one != two)
    assert HmacSigner(b"another").verify(text, one) is None


@given(st.binary(min_size=1, max_size=64))
def test_purpose_and_content_are_separated(raw: bytes) -> None:
    assert SIGNER.verify(SIGNER.sign(raw, "ab"), "a") is None
    assert SIGNER.sign(b"b" + raw, "a") != SIGNER.sign(raw, "ab")


@given(st.text(max_size=80))
def test_unsigned_text_does_not_verify(text: str) -> None:
    assert SIGNER.verify(text, "") is None


@given(st.binary(max_size=64))
def test_base64url_accepts_only_the_canonical_form(raw: bytes) -> None:
    text = base64url_encode(raw)
    assert base64url_decode(text) == raw
    assert all(
        base64url_decode(other) == b""
        for other in (f"{text}=", f" {text}", f"{text}\n", f"{text}ü")
    )


def test_hmac_signers_of_different_keys_differ() -> None:
    one, two = Signer.generate(), Signer.generate()
    text = one.hmac_signer().sign(b"x", "p")
    assert one.hmac_signer().verify(text, "p") == b"x"
    assert two.hmac_signer().verify(text, "p") is None
