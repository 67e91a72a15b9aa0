from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.server.security.accounttokens import Signer
from phalanx.server.security.seals import Seal, decoded, encoded

SEAL = Seal(b"the key")


@given(st.binary(max_size=64), st.text(max_size=20), st.text(max_size=20))
def test_what_was_sealed_is_opened_for_its_purpose_alone(raw: bytes, one: str, two: str) -> None:
    text = SEAL.sealed(raw, one)
    assert SEAL.opened(text, one) == raw
    assert (SEAL.opened(text, two) is None) == (one != two)
    assert Seal(b"another").opened(text, one) is None


@given(st.binary(min_size=1, max_size=64))
def test_a_purpose_does_not_run_on_into_the_bytes(raw: bytes) -> None:
    assert SEAL.opened(SEAL.sealed(raw, "ab"), "a") is None
    assert SEAL.sealed(b"b" + raw, "a") != SEAL.sealed(raw, "ab")


@given(st.text(max_size=80))
def test_nothing_else_is_opened(text: str) -> None:
    assert SEAL.opened(text, "") is None


@given(st.binary(max_size=64))
def test_bytes_are_spelled_in_one_way(raw: bytes) -> None:
    text = encoded(raw)
    assert decoded(text) == raw
    assert all(decoded(other) == b"" for other in (f"{text}=", f" {text}", f"{text}\n", f"{text}ü"))


def test_a_key_has_one_seal_and_another_key_another() -> None:
    one, two = Signer.made(), Signer.made()
    text = one.seal().sealed(b"x", "p")
    assert one.seal().opened(text, "p") == b"x"
    assert two.seal().opened(text, "p") is None
