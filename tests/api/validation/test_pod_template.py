"""Rules of pod templates."""

from __future__ import annotations

from phalanx.api.kinds import POD_TEMPLATE
from tests.api.stored_objects import creation_causes

POD = {"containers": [{"name": "main", "image": "app:1"}]}


def test_a_template_is_judged_as_a_pod_is() -> None:
    assert creation_causes(POD_TEMPLATE, {"template": {"spec": POD}}) == []
    odd = {**POD, "dnsPolicy": "Maybe"}
    assert creation_causes(POD_TEMPLATE, {"template": {"spec": odd}}) == [
        "template.spec.dnsPolicy: NotSupported"
    ]


def test_template_label_errors_are_reported_beside_the_spec() -> None:
    meta = {"labels": {"a b": "c"}, "annotations": {"a b": "c"}}
    assert creation_causes(POD_TEMPLATE, {"template": {"metadata": meta, "spec": POD}}) == [
        "template.labels: Invalid",
        "template.annotations: Invalid",
    ]


def test_nothing_in_a_template_is_ephemeral() -> None:
    spec = {**POD, "ephemeralContainers": [{"name": "debug", "image": "app:1"}]}
    assert creation_causes(POD_TEMPLATE, {"template": {"spec": spec}}) == [
        "template.spec.ephemeralContainers: Forbidden"
    ]
