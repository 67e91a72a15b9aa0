from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.server.security.signing import HmacSigner, Signer, base64url_decode, base64url_encode

SEAL = HmacSigner(b"the key")


@given(st.binary(max_size=64), st.text(max_size=20), st.text(max_size=20))
def test_what_was_sealed_is_opened_for_its_purpose_alone(raw: bytes, one: str, two: str) -> None:
    text = SEAL.sign(raw, one)
    assert SEAL.verify(text, one) == raw
    assert (SEAL.verify(text, two) is None) == (one != two)
    assert HmacSigner(b"another").verify(text, one) is None


@given(st.binary(min_size=1, max_size=64))
def test_a_purpose_does_not_run_on_into_the_bytes(raw: bytes) -> None:
    assert SEAL.verify(SEAL.sign(raw, "ab"), "a") is None
    assert SEAL.sign(b"b" + raw, "a") != SEAL.sign(raw, "ab")


@given(st.text(max_size=80))
def test_nothing_else_is_opened(text: str) -> None:
    assert SEAL.verify(text, "") is None


@given(st.binary(max_size=64))
def test_bytes_are_spelled_in_one_way(raw: bytes) -> None:
    text = base64url_encode(raw)
    assert base64url_decode(text) == raw
    assert all(
        base64url_decode(other) == b""
        for other in (f"{text}=", f" {text}", f"{text}\n", f"{text}ü")
    )


def test_a_key_has_one_seal_and_another_key_another() -> None:
    one, two = Signer.generate(), Signer.generate()
    text = one.hmac_signer().sign(b"x", "p")
    assert one.hmac_signer().verify(text, "p") == b"x"
    assert two.hmac_signer().verify(text, "p") is None
