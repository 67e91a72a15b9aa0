from __future__ import annotations

import pytest

from phalanx.api.formats import FORMATS


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("byte", ["", "aGk="], ["a", "!!"]),
        ("cidr", ["10.0.0.0/8", "10.1.2.3/8", "::/0"], ["10.0.0.0", "10.0.0.0/33"]),
        ("date", ["2026-02-28"], ["2026-02-30", "yesterday"]),
        ("datetime", ["2026-02-28T10:00:00Z", "2026-02-28t10:00:00.123456789+02:00"],
         ["2026-02-28", "2026-02-28T25:00:00Z"]),
        ("duration", ["1h30m", "22 ns", "1.5s", "0"], ["", "h", "1 fortnight"]),
        ("email", ["a@b.c"], ["a", "a@b@c"]),
        ("hexcolor", ["#fff", "00ff00"], ["#ffff"]),
        ("hostname", ["a.b-c.d", "x."], ["-a", "a..b", "a" * 64]),
        ("ipv4", ["10.0.0.1"], ["::1", "10.0.0.256"]),
        ("ipv6", ["::1"], ["10.0.0.1"]),
        ("k8sshortname", ["a-b"], ["a.b"]),
        ("k8slongname", ["a.b"], ["A"]),
        ("mac", ["00:11:22:aa:bb:cc"], ["00:11:22"]),
        ("quantity", ["1Gi", "500m"], ["1 GB"]),
        ("uri", ["https://x", "/a/b"], ["x y", "nothing"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
        ("uuid4", ["123e4567-e89b-42d3-a456-426614174000"],
         ["123e4567-e89b-12d3-a456-426614174000"]),
    ],
)  # fmt: skip
def test_a_format_holds_of_some_texts(name: str, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not FORMATS[name](text)] == []
    assert [text for text in no if FORMATS[name](text)] == []
