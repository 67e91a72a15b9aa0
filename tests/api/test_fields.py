"""Formats of names, labels and keys."""

from __future__ import annotations

import pytest

from phalanx.api.fields import (
    Faults,
    annotation_key_faults,
    condition_reason_faults,
    config_key_faults,
    dns_label_faults,
    dns_subdomain_faults,
    env_name_faults,
    finalizer_faults,
    ip_faults,
    label_key_faults,
    label_value_faults,
    path_segment_faults,
    port_name_faults,
    prefix_faults,
    service_name_faults,
)


@pytest.mark.parametrize(
    ("faults", "good", "bad"),
    [
        (dns_label_faults, ["a", "a-1", "1a", "x" * 63], ["", "A", "a.b", "-a", "a-", "x" * 64]),
        (service_name_faults, ["a", "a-1", "x" * 63], ["", "A", "1a", "a.b", "a-", "x" * 64]),
        (dns_subdomain_faults, ["a", "a.b-c.d", "x" * 253], ["", "a..b", "a_b", "x" * 254, "a\n"]),
        (path_segment_faults, ["a", "A b", "..."], [".", "..", "a/b", "a%b"]),
        (label_key_faults, ["a", "A_b.c", "example.com/A"], ["", "/a", "a/", "a b", "E.com/a"]),
        (label_key_faults, ["x" * 63], ["x" * 64, "a/b/c", "-a"]),
        (label_value_faults, ["", "a", "A_b.c", "x" * 63], ["a b", "-a", "x" * 64]),
        (annotation_key_faults, ["Example.com/X"], ["a b"]),
        (config_key_faults, ["a", "A.b_c-d", "..."[:1] + "a"], ["", "a b", ".", "..", "..a"]),
        (config_key_faults, ["x" * 253], ["x" * 254]),
        (env_name_faults, ["A", "a b", "1"], ["", "A=B", "ä"]),
        (port_name_faults, ["http", "a-1"], ["", "HTTP", "1", "a--b", "-a", "a-", "x" * 16]),
        (finalizer_faults, ["a.b/c", "kubernetes", "orphan"], ["c", "a b"]),
        (condition_reason_faults, ["A", "A_b", "A,B:C"], ["", "1A", "A,", "A b"]),
        (ip_faults, ["10.0.0.1", "::1"], ["", "10.0.0", "10.0.0.256"]),
    ],
)
def test_a_format_takes_what_fits_and_names_the_faults_of_what_does_not(
    faults: Faults, good: list[str], bad: list[str]
) -> None:
    assert [text for text in good if faults(text)] == []
    assert [text for text in bad if not faults(text)] == []


def test_a_prefix_may_end_with_a_dash() -> None:
    assert prefix_faults(dns_label_faults, "web-") == []
    assert prefix_faults(dns_label_faults, "-") != []


def test_a_key_without_a_name_has_two_faults() -> None:
    first, second = label_key_faults("")
    assert first == "name part must be non-empty"
    assert second.startswith("name part must consist of")
