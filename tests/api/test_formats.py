"""Validators of names, labels and keys; formats; percentages."""

from __future__ import annotations

import pytest

from phalanx.api.formats import (
    FORMATS,
    StringValidator,
    resolve_int_or_percent,
    validate_annotation_key,
    validate_condition_reason,
    validate_config_key,
    validate_dns_label,
    validate_dns_subdomain,
    validate_env_name,
    validate_finalizer,
    validate_ip,
    validate_label_key,
    validate_label_value,
    validate_name_prefix,
    validate_path_segment,
    validate_port_name,
    validate_service_name,
)


@pytest.mark.parametrize(
    ("faults", "good", "bad"),
    [
        (validate_dns_label, ["a", "a-1", "1a", "x" * 63], ["", "A", "a.b", "-a", "a-", "x" * 64]),
        (validate_service_name, ["a", "a-1", "x" * 63], ["", "A", "1a", "a.b", "a-", "x" * 64]),
        (
            validate_dns_subdomain,
            ["a", "a.b-c.d", "x" * 253],
            ["", "a..b", "a_b", "x" * 254, "a\n"],
        ),
        (validate_path_segment, ["a", "A b", "..."], [".", "..", "a/b", "a%b"]),
        (validate_label_key, ["a", "A_b.c", "example.com/A"], ["", "/a", "a/", "a b", "E.com/a"]),
        (validate_label_key, ["x" * 63], ["x" * 64, "a/b/c", "-a"]),
        (validate_label_value, ["", "a", "A_b.c", "x" * 63], ["a b", "-a", "x" * 64]),
        (validate_annotation_key, ["Example.com/X"], ["a b"]),
        (validate_config_key, ["a", "A.b_c-d", "..."[:1] + "a"], ["", "a b", ".", "..", "..a"]),
        (validate_config_key, ["x" * 253], ["x" * 254]),
        (validate_env_name, ["A", "a b", "1"], ["", "A=B", "ä"]),
        (validate_port_name, ["http", "a-1"], ["", "HTTP", "1", "a--b", "-a", "a-", "x" * 16]),
        (validate_finalizer, ["a.b/c", "kubernetes", "orphan"], ["c", "a b"]),
        (validate_condition_reason, ["A", "A_b", "A,B:C"], ["", "1A", "A,", "A b"]),
        (validate_ip, ["10.0.0.1", "::1"], ["", "10.0.0", "10.0.0.256"]),
    ],
)
def test_validator_accepts_valid_strings_and_reports_invalid_ones(
    faults: StringValidator, good: list[str], bad: list[str]
) -> None:
    assert [text for text in good if faults(text)] == []
    assert [text for text in bad if not faults(text)] == []


def test_name_prefix_may_end_with_a_dash() -> None:
    assert validate_name_prefix(validate_dns_label, "web-") == []
    assert validate_name_prefix(validate_dns_label, "-") != []


def test_label_key_without_name_has_two_errors() -> None:
    first, second = validate_label_key("")
    assert first == "name part must be non-empty"
    assert second.startswith("name part must consist of")


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
def test_schema_format_accepts_valid_strings_only(name: str, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not FORMATS[name](text)] == []
    assert [text for text in no if FORMATS[name](text)] == []


@pytest.mark.parametrize(
    ("value", "up", "down"), [(2, 2, 2), ("50%", 3, 2), ("0%", 0, 0), ("007%", 1, 0)]
)
def test_a_percentage_is_resolved_by_the_total(value: int | str, up: int, down: int) -> None:
    assert resolve_int_or_percent(value, 5, round_up=True) == up
    assert resolve_int_or_percent(value, 5, round_up=False) == down
