"""Rules of Jobs, and of the spec that they share with templates of Jobs.

Once there, a Job may change how many pods run at a time, its limits, and whether it is suspended;
an indexed one its completions too, together with the parallelism. While it is suspended and none
of its pods runs, its template may change in where pods go and what they ask for:

    labels and annotations         freely
    nodeSelector, tolerations      freely
    schedulingGates                freely
    node affinity                  freely
    resources of containers        freely
"""

from __future__ import annotations

import re
from typing import Any

from phalanx.api.causes import Causes, invalid, required, too_long, under, unsupported
from phalanx.api.defaults.job import NAME_LABELS, UID_LABELS
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_label_faults, dns_subdomain_faults
from phalanx.api.labelselectors import selects
from phalanx.api.rules.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    at_least,
    every,
    given,
    one_of,
    present,
    struct,
)
from phalanx.api.rules.jobpolicy import check_policies, is_indexed
from phalanx.api.rules.jobscheduling import SCHEDULING, check_variant
from phalanx.api.rules.meta import check_selector
from phalanx.api.rules.podspec import CONTAINERS
from phalanx.api.rules.template import POD_TEMPLATE_SPEC
from phalanx.api.selectors import BadSelector
from phalanx.api.wire import Object

MAX_INDEXED_PARALLELISM = 100_000
MAX_FAILED_INDEXES = 100_000
#: With more completions than this and limits per index, fewer pods may run and fail.
MANY_COMPLETIONS = 100_000
MAX_AMONG_MANY = 10_000
_MAX_MANAGER = 63
_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")
_RESTARTS = ("OnFailure", "Never")
_INDEX_LIMITS = ("backoffLimitPerIndex", "maxFailedIndexes")
_NEEDS_INDEX = "requires indexed completion mode"

# --------------------------------------------------------------------------------- spec, shared


def check_manager(new: Any, old: Any) -> Causes:
    """Who looks after an object, as `example.com/controller`."""
    if not new:
        return [required("")]
    host, _, path = new.partition("/")
    if not host or not path:
        detail = 'must be a domain-prefixed path (such as "acme.io/foo")'
        found = [invalid("", new, detail)]
    else:
        found = [invalid("", host, fault) for fault in dns_subdomain_faults(host)]
        if not _PATH.fullmatch(path):
            found.append(invalid("", path, f"Invalid path (regex used is '{_PATH.pattern}')"))
    return [*found, too_long("", _MAX_MANAGER)] if len(new) > _MAX_MANAGER else found


def _index_limits(new: Any, old: Any) -> Causes:
    """Limits that go with indexes, and cannot be without them."""
    failed, per_index = new.get("maxFailedIndexes"), new.get("backoffLimitPerIndex")
    found: list[Cause] = []
    if failed is not None and per_index is None:
        found.append(required("backoffLimitPerIndex", "when maxFailedIndexes is specified"))
    if is_indexed(new):
        return [*found, *_indexed(new), *_many_indexed(new)]
    pointless = (field for field in _INDEX_LIMITS if new.get(field) is not None)
    return [*found, *(invalid(field, new[field], _NEEDS_INDEX) for field in pointless)]


def _indexed(spec: Object) -> list[Cause]:
    completions, failed = spec.get("completions"), spec.get("maxFailedIndexes", 0)
    found: list[Cause] = []
    if completions is None:
        found.append(required("completions", "when completion mode is Indexed"))
    if spec.get("parallelism", 0) > MAX_INDEXED_PARALLELISM:
        detail = (
            f"must be less than or equal to {MAX_INDEXED_PARALLELISM} "
            "when completion mode is Indexed"
        )
        found.append(invalid("parallelism", spec["parallelism"], detail))
    if completions is not None and failed > completions:
        detail = "must be less than or equal to completions"
        found.append(invalid("maxFailedIndexes", failed, detail))
    if failed > MAX_FAILED_INDEXES:
        detail = f"must be less than or equal to {MAX_FAILED_INDEXES}"
        found.append(invalid("maxFailedIndexes", failed, detail))
    return found


def _many_indexed(spec: Object) -> list[Cause]:
    many = spec.get("completions", 0) > MANY_COMPLETIONS
    if not many or spec.get("backoffLimitPerIndex") is None:
        return []
    found: list[Cause] = []
    if spec.get("maxFailedIndexes") is None:
        detail = f"must be specified when completions is above {MANY_COMPLETIONS}"
        found.append(required("maxFailedIndexes", detail))
    detail = (
        f"must be less than or equal to {MAX_AMONG_MANY} when completions are above "
        f"{MANY_COMPLETIONS} and used with backoff limit per index"
    )
    above = (f for f in ("parallelism", "maxFailedIndexes") if spec.get(f, 0) > MAX_AMONG_MANY)
    return [*found, *(invalid(field, spec[field], detail) for field in above)]


def _restart_policy(new: Any, old: Any) -> Causes:
    """Pods of a Job come to an end; where their failures are sorted, they fail at once."""
    field = "template.spec.restartPolicy"
    policy = new.get("template", {}).get("spec", {}).get("restartPolicy", "")
    if policy in ("", "Always"):
        return [required(field, 'valid values: "OnFailure", "Never"')]
    if policy not in _RESTARTS:
        return [unsupported(field, policy, _RESTARTS)]
    if policy != "Never" and "podFailurePolicy" in new:
        detail = 'only "Never" is supported when podFailurePolicy is specified'
        return [invalid(field, policy, detail)]
    return ()


_NATURAL = given(at_least(0))

#: What the specs of a Job and of a template of Jobs have in common.
JOB_SPEC: Check = every(
    struct(
        ("parallelism", _NATURAL),
        ("completions", _NATURAL),
        ("activeDeadlineSeconds", _NATURAL),
        ("backoffLimit", _NATURAL),
        ("ttlSecondsAfterFinished", _NATURAL),
        ("backoffLimitPerIndex", _NATURAL),
        ("maxFailedIndexes", _NATURAL),
        ("managedBy", present(check_manager)),
        ("completionMode", given(one_of("NonIndexed", "Indexed"))),
    ),
    _index_limits,
    check_policies,
    struct(("template", POD_TEMPLATE_SPEC)),
    _restart_policy,
    SCHEDULING,
)


def _selects_by_itself(new: Any, old: Any) -> Causes:
    """Jobs of one template cannot share a selector."""
    found: list[Cause] = []
    if new.get("selector") is not None:
        found.append(invalid("selector", new["selector"], "`selector` will be auto-generated"))
    if new.get("manualSelector"):
        found.append(unsupported("manualSelector", True, ("nil", "false")))
    return found


#: The spec of Jobs that are made of a template.
JOB_TEMPLATE_SPEC: Check = every(JOB_SPEC, _selects_by_itself)

# ------------------------------------------------------------------------------------ selection


def _selector(new: Any, old: Any) -> Causes:
    return [required("")] if new is None else check_selector(new, CREATED)


def _labels(spec: Object) -> dict[str, str]:
    labels: dict[str, str] = spec.get("template", {}).get("metadata", {}).get("labels", {})
    return labels


def _matches(selector: Object, labels: dict[str, str]) -> bool:
    """One that cannot be read is refused elsewhere."""
    try:
        return selects(selector, labels)
    except BadSelector:
        return True


def _selects_its_pods(new: Any, old: Any) -> Causes:
    labels = _labels(new)
    if new.get("selector") is None or _matches(new["selector"], labels):
        return ()
    detail = "`selector` does not match template `labels`"
    return [invalid("template.metadata.labels", labels, detail)]


def _selects_no_others(new: Any, old: Any) -> Causes:
    """Unless it selects by hand, a Job selects by labels that no other Job's pods have."""
    spec, meta = new.get("spec", {}), new["metadata"]
    if spec.get("manualSelector") or spec.get("selector") is None:
        return ()
    own = {
        **dict.fromkeys(UID_LABELS, meta.get("uid", "")),
        **dict.fromkeys(NAME_LABELS, meta.get("name", "")),
    }
    found = _own_labels(_labels(spec), own)
    if not _matches(spec["selector"], own):
        found.append(invalid("selector", spec["selector"], "`selector` not auto-generated"))
    return under("spec", found)


def _own_labels(labels: dict[str, str], own: dict[str, str]) -> list[Cause]:
    found: list[Cause] = []
    for key, value in own.items():
        place, detail = f"template.metadata.labels[{key}]", f"must be '{value}'"
        if key not in labels:
            found.append(required(place, detail))
        elif labels[key] != value:
            found.append(invalid(place, labels, detail))
    return found


# -------------------------------------------------------------------------------------- changes


def _stays(new: Any, old: Any) -> Causes:
    return () if old is CREATED or new == old else [invalid("", new, IMMUTABLE)]


def _completions(new: Any, old: Any) -> Causes:
    """An indexed Job may grow and shrink as a whole."""
    if old is CREATED:
        return ()
    completions, before = new.get("completions"), (old or {}).get("completions")
    if completions == before:
        return ()
    if not is_indexed(new):
        return [invalid("completions", completions, IMMUTABLE)]
    if None in (completions, before) or completions == new.get("parallelism"):
        return ()
    detail = "can only be modified in tandem with spec.parallelism"
    return [invalid("completions", completions, detail)]


def _template(new: Any, old: Any) -> Causes:
    if old is CREATED:
        return ()
    after, before = (job.get("spec", {}).get("template", {}) for job in (new, old))
    if after == before:
        return ()
    if _is_at_rest(old) and _without_placement(after) == _without_placement(before):
        return ()
    return [invalid("spec.template", None, IMMUTABLE)]


def _is_at_rest(job: Object) -> bool:
    """Whether a Job is suspended and known to have no pods."""
    status = job.get("status", {})
    conditions = status.get("conditions", ())
    suspended = any(c.get("type") == "Suspended" and c.get("status") == "True" for c in conditions)
    stopped = suspended or "startTime" not in status
    return bool(job.get("spec", {}).get("suspend")) and stopped and not status.get("active")


def _without_placement(template: Object) -> Object:
    """A template without what may change while no pod is made from it."""
    meta, spec = template.get("metadata", {}), dict(template.get("spec", {}))
    for field in ("nodeSelector", "tolerations", "schedulingGates"):
        spec.pop(field, None)
    affinity = {k: v for k, v in spec.pop("affinity", {}).items() if k != "nodeAffinity"}
    for field in CONTAINERS:
        spec[field] = [{**container, "resources": {}} for container in spec.get(field, ())]
    kept = {k: v for k, v in meta.items() if k not in ("labels", "annotations")}
    return {"metadata": kept, "spec": spec, "affinity": affinity}


# ------------------------------------------------------------------------------------------ Job


def _room_for_index(new: Any, old: Any) -> Causes:
    """The last pod of an indexed Job has the Job's name and its index as host name."""
    spec, name = new.get("spec", {}), new["metadata"].get("name", "")
    last = spec.get("completions", 0) - 1
    if not is_indexed(spec) or last < 0 or not dns_label_faults(f"{name}-{last}"):
        return ()
    detail = f"will not able to create pod with invalid DNS label: {name}-{last}"
    return [invalid("metadata.name", name, detail)]


_SPEC = every(
    JOB_SPEC,
    struct(("selector", _selector)),
    _selects_its_pods,
    _completions,
    struct(
        ("selector", _stays),
        ("completionMode", _stays),
        ("podFailurePolicy", _stays),
        ("backoffLimitPerIndex", _stays),
        ("managedBy", _stays),
        ("successPolicy", _stays),
        ("gangPolicy", _stays),
    ),
    check_variant,
)

JOB: Check = every(
    _selects_no_others,
    struct(("spec", present(_SPEC))),
    _template,
    _room_for_index,
)
