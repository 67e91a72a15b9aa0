"""Names: the expected patterns and hashes, and valid for every input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.formats import validate_dns_label, validate_dns_subdomain
from phalanx.builder import pod_group_name, template_name, workload_name
from phalanx.builder.names import claim_name, claim_prefix, free_name

LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
DOTTED = st.lists(LABELS, min_size=2, max_size=8).map(".".join)
#: Valid names of objects, the longest ones often.
NAMES = st.one_of(
    LABELS,
    DOTTED.map(lambda name: name[:253].rstrip("-.")),
    st.integers(240, 253).map(lambda length: "a" * length),
    st.integers(1, 240).map(lambda at: f"{'a' * at}.{'b' * (252 - at)}"),
)


def test_workload_name_has_the_owner_and_the_hash_of_its_uid() -> None:
    assert workload_name("train", "uid-123") == "train-795ddf89fd"


def test_template_name_has_the_job() -> None:
    assert template_name("train") == "train-pgt-0"
    assert template_name("j" * 57) == f"{'j' * 57}-pgt-0"


def test_group_name_has_workload_and_template() -> None:
    assert pod_group_name("my-workload", "my-template") == "my-workload-my-template-67bd6bbcc4"


def test_long_owner_is_truncated_before_the_hash() -> None:
    name = workload_name("j" * 300, "uid-123")
    assert name == f"{'j' * 242}-795ddf89fd"


@pytest.mark.parametrize(
    ("workload", "template"), [("w" * 300, "short"), ("short", "t" * 300), ("w" * 300, "t" * 300)]
)
def test_both_parts_of_a_long_name_are_kept(workload: str, template: str) -> None:
    name = pod_group_name(workload, template)
    first, second, _ = name.split("-")
    assert len(name) == 253
    assert workload.startswith(first)
    assert template.startswith(second)
    assert "short" in (first, second) or len(first) - len(second) in (0, 1)


def test_truncation_leaves_no_dot_before_a_dash() -> None:
    assert ".-" not in workload_name(f"{'a' * 241}.{'b' * 11}", "uid-123")
    assert ".-" not in pod_group_name(f"{'a' * 200}.{'b' * 40}", "t" * 63)


def test_taken_name_gets_a_number() -> None:
    assert free_name("root", []) == "root"
    assert free_name("root", ["driver", "root", "root-0"]) == "root-1"


@given(NAMES, st.uuids())
def test_workload_name_of_every_owner_is_valid(owner: str, uid: object) -> None:
    assert validate_dns_subdomain(owner) == []
    name = workload_name(owner, str(uid))
    assert validate_dns_subdomain(name) == []
    assert name == workload_name(owner, str(uid))


@given(NAMES)
def test_template_name_of_every_job_is_valid(job: str) -> None:
    assert validate_dns_label(template_name(job)) == []


@given(NAMES, LABELS, st.one_of(st.just(""), st.integers(0, 999).map(str), NAMES))
def test_group_name_of_every_template_is_valid(workload: str, template: str, instance: str) -> None:
    assert validate_dns_subdomain(pod_group_name(workload, template, instance)) == []


@given(NAMES, NAMES)
def test_different_jobs_have_different_template_names(one: str, other: str) -> None:
    assert (template_name(one) == template_name(other)) is (one == other)


@given(st.integers(58, 245), st.sampled_from("-."), LABELS, LABELS)
def test_long_names_that_differ_at_their_end_stay_different(
    length: int, dash: str, one: str, other: str
) -> None:
    stem = f"{'a' * length}{dash}"
    assert (template_name(stem + one) == template_name(stem + other)) is (one == other)
    groups = [pod_group_name(stem + end, "t" * 63) for end in (one, other)]
    assert (groups[0] == groups[1]) is (one == other)


@given(LABELS, LABELS, st.integers(0, 99).map(str))
def test_instance_name_differs_from_the_name_of_another_template(
    workload: str, template: str, instance: str
) -> None:
    assert pod_group_name(workload, template, instance) != (
        pod_group_name(workload, f"{template}-{instance}")
    )


@given(LABELS, LABELS, st.uuids(), st.uuids())
def test_owners_of_the_same_name_have_different_workload_names(
    owner: str, template: str, one: object, other: object
) -> None:
    names = [workload_name(owner, str(uid)) for uid in (one, other)]
    assert (names[0] == names[1]) is (one == other)
    groups = [pod_group_name(name, template) for name in names]
    assert (groups[0] == groups[1]) is (one == other)


def test_claim_name_has_owner_and_entry() -> None:
    assert claim_prefix("worker-0", "gpu") == "worker-0-gpu-"
    assert claim_name("worker-0", "gpu", "uid-123") == "worker-0-gpu-lgbf7"
    assert claim_name("worker-0", "gpu", "uid-124") != claim_name("worker-0", "gpu", "uid-123")


@given(NAMES, LABELS, st.uuids().map(str))
def test_claim_name_is_valid_and_keeps_both_parts(owner: str, claim: str, uid: str) -> None:
    name = claim_name(owner, claim, uid)
    assert list(validate_dns_subdomain(name)) == []
    assert len(claim_prefix(owner, claim)) <= 58
    assert name.startswith(owner[:10].rstrip("-.")) or len(claim) > len(owner)
