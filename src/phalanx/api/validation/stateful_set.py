"""Validation of StatefulSets and ControllerRevisions."""

from __future__ import annotations

from typing import Any

from phalanx.api.errors import (
    Cause,
    Causes,
    forbidden,
    invalid,
    prefix_causes,
    required,
    unsupported,
)
from phalanx.api.selectors import selector_matches
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    if_present,
    minimum,
    one_of,
    optional,
    struct,
)
from phalanx.api.validation.metadata import check_selector
from phalanx.api.validation.pod_template import check_template_metadata
from phalanx.api.validation.policy import check_int_or_percent

#: The fields of a StatefulSet's spec that may change.
MUTABLE_FIELDS = (
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
)  # fmt: skip
_COUNTS = ("readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas")


def _one_word(detail: str, *known: str) -> Check:
    """Require one of the known words; the cause is of the type Invalid."""

    def check(new: Any, old: Any) -> Causes:
        if not new:
            return [required("")]
        return () if new in known else [invalid("", new, detail)]

    return check


def _check_max_unavailable(new: Any, old: Any) -> Causes:
    found = check_int_or_percent(new, old)
    if found:
        return found
    if str(new).rstrip("%").lstrip("0") == "":
        return [invalid("", new, "cannot be 0")]
    return ()


def _check_update_strategy(new: Any, old: Any) -> Causes:
    strategy = new or {}
    found = [*_UPDATE_TYPE(strategy, CREATED)]
    rolling = strategy.get("rollingUpdate")
    if strategy.get("type") == "OnDelete" and rolling is not None:
        detail = "only allowed for updateStrategy 'RollingUpdate'"
        return [*found, invalid("rollingUpdate", rolling, detail)]
    return [*found, *_ROLLING_UPDATE(strategy, CREATED)]


_UPDATE_TYPE = struct(
    ("type", _one_word("must be 'RollingUpdate' or 'OnDelete'", "RollingUpdate", "OnDelete"))
)
_ROLLING_UPDATE = struct(
    (
        "rollingUpdate",
        if_present(
            struct(
                ("partition", optional(minimum(0))),
                ("maxUnavailable", if_present(_check_max_unavailable)),
            )
        ),
    )
)


def _check_set_selector(new: Any, old: Any) -> Causes:
    if new is None:
        return [required("")]
    if not new.get("matchLabels") and not new.get("matchExpressions"):
        return [invalid("", new, "empty selector is invalid for statefulset")]
    return check_selector(new, CREATED)


def _check_template(new: Any, old: Any) -> Causes:
    """Check what the pod template of a StatefulSet must have.

    Kubernetes does not validate the rest of it; the controller reports pods that are refused.
    """
    template, selector = new.get("template") or {}, new.get("selector")
    found: list[Cause] = []
    if selector and not _check_set_selector(selector, CREATED):
        labels = (template.get("metadata") or {}).get("labels") or {}
        if not selector_matches(selector, labels):
            detail = "`selector` does not match template `labels`"
            found.append(invalid("metadata.labels", labels, detail))
    found += check_template_metadata(template, CREATED)
    spec = template.get("spec") or {}
    policy = spec.get("restartPolicy", "Always")
    if policy != "Always":
        found.append(unsupported("spec.restartPolicy", policy, ("Always",)))
    if spec.get("activeDeadlineSeconds") is not None:
        detail = "activeDeadlineSeconds in StatefulSet is not Supported"
        found.append(forbidden("spec.activeDeadlineSeconds", detail))
    return prefix_causes("template", found)


_RETENTION = optional(one_of("Delete", "Retain"))
_SET_SPEC = all_of(
    struct(
        (
            "podManagementPolicy",
            _one_word("must be 'OrderedReady' or 'Parallel'", "OrderedReady", "Parallel"),
        ),
        ("updateStrategy", _check_update_strategy),
        (
            "persistentVolumeClaimRetentionPolicy",
            if_present(struct(("whenDeleted", _RETENTION), ("whenScaled", _RETENTION))),
        ),
        ("replicas", optional(minimum(0))),
        ("minReadySeconds", optional(minimum(0))),
        ("revisionHistoryLimit", optional(minimum(0))),
        ("ordinals", if_present(struct(("start", optional(minimum(0)))))),
        ("selector", _check_set_selector),
    ),
    _check_template,
)


def _check_immutable_fields(new: Any, old: Any) -> Causes:
    if old is CREATED:
        return ()
    kept = [field for field in {**old, **new} if field not in MUTABLE_FIELDS]
    if all(new.get(field) == old.get(field) for field in kept):
        return ()
    quoted = [f"'{field}'" for field in MUTABLE_FIELDS]
    detail = (
        "updates to statefulset spec for fields other than "
        f"{', '.join(quoted[:-1])} and {quoted[-1]} are forbidden"
    )
    return [forbidden("", detail)]


check_stateful_set: Check = struct(("spec", if_present(all_of(_SET_SPEC, _check_immutable_fields))))


def _check_counts(new: Any, old: Any) -> Causes:
    status = new or {}
    total, ready = status.get("replicas", 0), status.get("readyReplicas", 0)
    found = [
        invalid(field, status.get(field, 0), "cannot be greater than status.replicas")
        for field in _COUNTS
        if status.get(field, 0) > max(total, 0)
    ]
    if status.get("availableReplicas", 0) > ready:
        detail = "cannot be greater than status.readyReplicas"
        found.append(invalid("availableReplicas", status["availableReplicas"], detail))
    before = {} if old is CREATED else old or {}
    if status.get("collisionCount", 0) < before.get("collisionCount", 0):
        detail = "cannot be decremented"
        found.append(invalid("collisionCount", status.get("collisionCount", 0), detail))
    return found


check_stateful_set_status: Check = struct(
    (
        "status",
        all_of(
            struct(
                *(
                    (field, optional(minimum(0)))
                    for field in ("replicas", *_COUNTS, "observedGeneration", "collisionCount")
                )
            ),
            _check_counts,
        ),
    )
)


def _check_data(new: Any, old: Any) -> Causes:
    if new is None:
        return [required("", "data is mandatory")]
    return () if old is CREATED or new == old else [invalid("", new, IMMUTABLE)]


check_controller_revision: Check = struct(("data", _check_data), ("revision", optional(minimum(0))))
