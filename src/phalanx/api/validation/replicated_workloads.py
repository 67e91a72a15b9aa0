"""Validation of Deployments, ReplicaSets, DaemonSets and ReplicationControllers.

All four have a selector that cannot be changed and a template of pods that always restart.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    optional,
    struct,
)
from phalanx.api.validation.metadata import check_labels, check_selector
from phalanx.api.validation.pod_template import POD_TEMPLATE_SPEC
from phalanx.api.validation.policy import check_int_or_percent
from phalanx.api.wire import Object

_NON_NEGATIVE = optional(minimum(0))


def _selector(kind: str, *, is_required: bool) -> Check:
    """Return the check of a label selector that must select something."""

    def check(new: Any, old: Any) -> Causes:
        if new is None:
            return [required("")] if is_required else ()
        if old is not CREATED and new != old:
            return [invalid("", new, IMMUTABLE)]
        found = [*check_selector(new, CREATED)]
        if not new.get("matchLabels") and not new.get("matchExpressions"):
            found.append(invalid("", new, f"empty selector is invalid for {kind}"))
        return found

    return check


def _template(kind: str) -> Check:
    """Return the check of the pod template of a spec: selected, and of pods that always restart."""

    def check(new: Any, old: Any) -> Causes:
        template = new.get("template")
        if template is None:
            return [required("template")]
        found: list[Cause] = []
        labels = (template.get("metadata") or {}).get("labels") or {}
        if not _is_selected(new.get("selector"), labels):
            detail = "`selector` does not match template `labels`"
            found.append(invalid("metadata.labels", labels, detail))
        found += POD_TEMPLATE_SPEC(template, CREATED)
        spec = template.get("spec") or {}
        policy = spec.get("restartPolicy", "Always")
        if policy != "Always":
            found.append(unsupported("spec.restartPolicy", policy, ("Always",)))
        if spec.get("activeDeadlineSeconds") is not None:
            detail = f"activeDeadlineSeconds in {kind} is not Supported"
            found.append(forbidden("spec.activeDeadlineSeconds", detail))
        return prefix_causes("template", found)

    return check


def _is_selected(selector: Any, labels: dict[str, str]) -> bool:
    """Whether a selector matches; an invalid or empty one has a cause of its own."""
    if not selector:
        return True
    if "matchLabels" in selector or "matchExpressions" in selector:
        return bool(check_selector(selector, CREATED)) or selector_matches(selector, labels)
    return False


def _share(value: Any) -> int:
    """Return the number of a number or percentage; 0 if it is invalid."""
    text = str(value).rstrip("%").lstrip("0") or "0"
    return int(text) if text.isdecimal() and len(text) < 10 else 0


# ---------------------------------------------------------------------------------- Deployments


def _check_positive_share(new: Any, old: Any) -> Causes:
    """Check a number or percentage, which may exceed 100 %."""
    found = check_int_or_percent(new, old)
    return () if isinstance(new, str) and new[:-1].isdecimal() and new[-1] == "%" else found


def _check_rolling_update(new: Any, old: Any) -> Causes:
    unavailable, surge = new.get("maxUnavailable", 0), new.get("maxSurge", 0)
    found = [
        *prefix_causes("maxUnavailable", _check_positive_share(unavailable, CREATED)),
        *prefix_causes("maxSurge", _check_positive_share(surge, CREATED)),
    ]
    if not found and not _share(unavailable) and not _share(surge):
        detail = "may not be 0 when `maxSurge` is 0"
        found.append(invalid("maxUnavailable", unavailable, detail))
    if isinstance(unavailable, str) and _share(unavailable) > 100:
        found.append(invalid("maxUnavailable", unavailable, "must not be greater than 100%"))
    return found


def _check_strategy(new: Any, old: Any) -> Causes:
    strategy = new or {}
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if kind == "Recreate":
        detail = "may not be specified when strategy `type` is 'Recreate'"
        return () if rolling is None else [forbidden("rollingUpdate", detail)]
    if kind != "RollingUpdate":
        return [unsupported("type", kind, ("Recreate", "RollingUpdate"))]
    if rolling is None:
        return [required("rollingUpdate", "this should be defaulted and never be nil")]
    return prefix_causes("rollingUpdate", _check_rolling_update(rolling, CREATED))


def _check_deadline(new: Any, old: Any) -> Causes:
    deadline, ready = new.get("progressDeadlineSeconds"), new.get("minReadySeconds", 0)
    if deadline is None or deadline > ready:
        return ()
    detail = "must be greater than minReadySeconds"
    return [invalid("progressDeadlineSeconds", deadline, detail)]


check_deployment: Check = struct(
    (
        "spec",
        if_present(
            all_of(
                struct(
                    ("replicas", _NON_NEGATIVE),
                    ("selector", _selector("deployment", is_required=True)),
                ),
                _template("ReplicaSet"),
                struct(
                    ("strategy", _check_strategy),
                    ("minReadySeconds", _NON_NEGATIVE),
                    ("revisionHistoryLimit", _NON_NEGATIVE),
                    ("progressDeadlineSeconds", _NON_NEGATIVE),
                ),
                _check_deadline,
            )
        ),
    )
)

# ---------------------------------------------------------------------------------- ReplicaSets

check_replica_set: Check = struct(
    (
        "spec",
        if_present(
            all_of(
                struct(
                    ("replicas", _NON_NEGATIVE),
                    ("minReadySeconds", _NON_NEGATIVE),
                    ("selector", _selector("deployment", is_required=True)),
                ),
                _template("ReplicaSet"),
            )
        ),
    )
)


def _check_label_map(new: Any, old: Any) -> Causes:
    return check_labels(new, old) if new else [required("")]


def _check_controller_template(new: Any, old: Any) -> Causes:
    """Check the template of a ReplicationController, whose selector is a map of labels."""
    return _template("ReplicationController")(
        {**new, "selector": {"matchLabels": new["selector"]} if new.get("selector") else None}, old
    )


check_replication_controller: Check = struct(
    (
        "spec",
        if_present(
            all_of(
                struct(
                    ("minReadySeconds", _NON_NEGATIVE),
                    ("selector", _check_label_map),
                    ("replicas", _NON_NEGATIVE),
                ),
                _check_controller_template,
            )
        ),
    )
)

# ----------------------------------------------------------------------------------- DaemonSets


def _check_daemon_rolling_update(new: Any, old: Any) -> Causes:
    unavailable, surge = new.get("maxUnavailable", 0), new.get("maxSurge", 0)
    if _share(unavailable) and _share(surge):
        return [invalid("maxSurge", surge, "may not be set when maxUnavailable is non-zero")]
    if not _share(unavailable) and not _share(surge):
        faults = {
            "maxUnavailable": check_int_or_percent(unavailable, CREATED),
            "maxSurge": check_int_or_percent(surge, CREATED),
        }
        found = [cause for at, causes in faults.items() for cause in prefix_causes(at, causes)]
        return found or [required("maxUnavailable", "cannot be 0 when maxSurge is 0")]
    field, share = ("maxUnavailable", unavailable) if _share(unavailable) else ("maxSurge", surge)
    return prefix_causes(field, check_int_or_percent(share, CREATED))


def _check_update_strategy(new: Any, old: Any) -> Causes:
    strategy = new or {}
    kind = strategy.get("type", "")
    if kind == "OnDelete":
        return ()
    if kind != "RollingUpdate":
        return [unsupported("", kind, ("OnDelete", "RollingUpdate"))]
    if strategy.get("rollingUpdate") is None:
        return [required("rollingUpdate")]
    return prefix_causes(
        "rollingUpdate", _check_daemon_rolling_update(strategy["rollingUpdate"], CREATED)
    )


check_daemon_set: Check = struct(
    (
        "spec",
        if_present(
            all_of(
                struct(("selector", _selector("daemonset", is_required=True))),
                _template("DaemonSet"),
                struct(
                    ("minReadySeconds", _NON_NEGATIVE),
                    ("updateStrategy", _check_update_strategy),
                    ("revisionHistoryLimit", _NON_NEGATIVE),
                ),
            )
        ),
    )
)

# --------------------------------------------------------------------------------------- status


def _counts(fields: Sequence[str], *, bounded: Sequence[str] = ()) -> Check:
    """Check the counts of a status; the `bounded` ones may not exceed `replicas`."""
    non_negative = struct(*((field, _NON_NEGATIVE) for field in fields))

    def check_bounds(new: Any, old: Any) -> Causes:
        status: Object = new or {}
        found = [
            invalid(field, status.get(field, 0), "cannot be greater than status.replicas")
            for field in bounded
            if status.get(field, 0) > max(status.get("replicas", 0), 0)
        ]
        if bounded and status.get("availableReplicas", 0) > status.get("readyReplicas", 0):
            detail = "cannot be greater than readyReplicas"
            found.append(invalid("availableReplicas", status.get("availableReplicas", 0), detail))
        before = {} if old is CREATED else old or {}
        if status.get("collisionCount", 0) < before.get("collisionCount", 0):
            detail = "cannot be decremented"
            found.append(invalid("collisionCount", status.get("collisionCount", 0), detail))
        return found

    return struct(("status", all_of(non_negative, check_bounds)))


_REPLICA_COUNTS = ("fullyLabeledReplicas", "readyReplicas", "availableReplicas")
check_replica_set_status: Check = _counts(
    ("replicas", *_REPLICA_COUNTS, "terminatingReplicas", "observedGeneration"),
    bounded=_REPLICA_COUNTS,
)
_DEPLOYMENT_COUNTS = ("updatedReplicas", "readyReplicas", "availableReplicas")
check_deployment_status: Check = _counts(
    (
        "observedGeneration", "replicas", *_DEPLOYMENT_COUNTS, "unavailableReplicas",
        "terminatingReplicas", "collisionCount",
    ),
    bounded=_DEPLOYMENT_COUNTS,
)  # fmt: skip
check_daemon_set_status: Check = _counts(
    (
        "currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady",
        "observedGeneration", "updatedNumberScheduled", "numberAvailable", "numberUnavailable",
        "collisionCount",
    )
)  # fmt: skip
