"""Validation of Jobs, of the Job spec that templates share, and of CronJobs.

After creation a Job may change parallelism, `suspend`, the `minCount` of its gang, and its limits
except `backoffLimitPerIndex`; an indexed Job may change completions together with parallelism.
While it is suspended and has no pods, these fields of its pod template may change:

    labels and annotations         nodeSelector, tolerations       schedulingGates
    node affinity                  resources of containers
"""

from __future__ import annotations

import re
import zoneinfo
from functools import cache
from typing import Any

from phalanx.api.cron_schedule import BadSchedule, parse_schedule
from phalanx.api.defaults.workloads import NAME_LABELS, UID_LABELS
from phalanx.api.errors import (
    Cause,
    Causes,
    invalid,
    prefix_causes,
    required,
    too_long,
    unsupported,
)
from phalanx.api.formats import validate_dns_label, validate_dns_subdomain
from phalanx.api.selectors import BadSelector, selector_matches
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    if_changed,
    if_present,
    mandatory,
    minimum,
    on_create,
    one_of,
    optional,
    struct,
)
from phalanx.api.validation.job_policies import (
    JOB_SCHEDULING,
    check_policies,
    check_policy_variant_unchanged,
    is_indexed,
)
from phalanx.api.validation.metadata import check_selector
from phalanx.api.validation.pod_spec import CONTAINER_FIELDS
from phalanx.api.validation.pod_template import POD_TEMPLATE_SPEC
from phalanx.api.wire import Object

MAX_INDEXED_PARALLELISM = 100_000
MAX_FAILED_INDEXES = 100_000
#: Above this number of completions, Jobs with limits per index have stricter limits.
MANY_COMPLETIONS = 100_000
MAX_WITH_MANY_COMPLETIONS = 10_000
_MAX_MANAGED_BY = 63
_MANAGED_BY_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+")
_RESTART_POLICIES = ("OnFailure", "Never")
_INDEX_LIMITS = ("backoffLimitPerIndex", "maxFailedIndexes")
_REQUIRES_INDEXED = "requires indexed completion mode"

# ------------------------------------------------------------------------------------- shared spec


def check_managed_by(new: Any, old: Any) -> Causes:
    """Require a qualified controller name, as `example.com/controller`."""
    if not new:
        return [required("")]
    host, _, path = new.partition("/")
    if not host or not path:
        detail = 'must be a domain-prefixed path (such as "acme.io/foo")'
        found = [invalid("", new, detail)]
    else:
        found = [invalid("", host, fault) for fault in validate_dns_subdomain(host)]
        if not _MANAGED_BY_PATH.fullmatch(path):
            found.append(
                invalid("", path, f"Invalid path (regex used is '{_MANAGED_BY_PATH.pattern}')")
            )
    return [*found, too_long("", _MAX_MANAGED_BY)] if len(new) > _MAX_MANAGED_BY else found


def _check_index_limits(new: Any, old: Any) -> Causes:
    """Check the limits per index, which need an indexed Job."""
    failed, per_index = new.get("maxFailedIndexes"), new.get("backoffLimitPerIndex")
    found: list[Cause] = []
    if failed is not None and per_index is None:
        found.append(required("backoffLimitPerIndex", "when maxFailedIndexes is specified"))
    if is_indexed(new):
        return [*found, *_check_indexed(new), *_check_many_indexes(new)]
    pointless = (field for field in _INDEX_LIMITS if new.get(field) is not None)
    return [*found, *(invalid(field, new[field], _REQUIRES_INDEXED) for field in pointless)]


def _check_indexed(spec: Object) -> list[Cause]:
    completions, failed = spec.get("completions"), spec.get("maxFailedIndexes")
    found: list[Cause] = []
    if completions is None:
        found.append(required("completions", "when completion mode is Indexed"))
    if spec.get("parallelism", 0) > MAX_INDEXED_PARALLELISM:
        detail = (
            f"must be less than or equal to {MAX_INDEXED_PARALLELISM} "
            "when completion mode is Indexed"
        )
        found.append(invalid("parallelism", spec["parallelism"], detail))
    if failed is not None and completions is not None and failed > completions:
        detail = "must be less than or equal to completions"
        found.append(invalid("maxFailedIndexes", failed, detail))
    if failed is not None and failed > MAX_FAILED_INDEXES:
        detail = f"must be less than or equal to {MAX_FAILED_INDEXES}"
        found.append(invalid("maxFailedIndexes", failed, detail))
    return found


def _check_many_indexes(spec: Object) -> list[Cause]:
    many = spec.get("completions", 0) > MANY_COMPLETIONS
    if not many or spec.get("backoffLimitPerIndex") is None:
        return []
    found: list[Cause] = []
    if spec.get("maxFailedIndexes") is None:
        detail = f"must be specified when completions is above {MANY_COMPLETIONS}"
        found.append(required("maxFailedIndexes", detail))
    detail = (
        f"must be less than or equal to {MAX_WITH_MANY_COMPLETIONS} when completions are above "
        f"{MANY_COMPLETIONS} and used with backoff limit per index"
    )
    above = (
        f for f in ("parallelism", "maxFailedIndexes") if spec.get(f, 0) > MAX_WITH_MANY_COMPLETIONS
    )
    return [*found, *(invalid(field, spec[field], detail) for field in above)]


def _check_restart_policy(new: Any, old: Any) -> Causes:
    """Require OnFailure or Never; with a pod failure policy only Never."""
    field = "template.spec.restartPolicy"
    policy = new.get("template", {}).get("spec", {}).get("restartPolicy", "")
    if policy in ("", "Always"):
        return [required(field, 'valid values: "OnFailure", "Never"')]
    if policy not in _RESTART_POLICIES:
        return [unsupported(field, policy, _RESTART_POLICIES)]
    if policy != "Never" and "podFailurePolicy" in new:
        detail = 'only "Never" is supported when podFailurePolicy is specified'
        return [invalid(field, policy, detail)]
    return ()


_NON_NEGATIVE = optional(minimum(0))

#: The checks that the specs of Jobs and Job templates share.
JOB_SPEC: Check = all_of(
    struct(
        ("parallelism", _NON_NEGATIVE),
        ("completions", _NON_NEGATIVE),
        ("activeDeadlineSeconds", _NON_NEGATIVE),
        ("backoffLimit", _NON_NEGATIVE),
        ("ttlSecondsAfterFinished", _NON_NEGATIVE),
        ("backoffLimitPerIndex", _NON_NEGATIVE),
        ("maxFailedIndexes", _NON_NEGATIVE),
        ("managedBy", if_present(check_managed_by)),
        ("completionMode", if_present(one_of("NonIndexed", "Indexed"))),
    ),
    _check_index_limits,
    check_policies,
    struct(("template", POD_TEMPLATE_SPEC)),
    _check_restart_policy,
    JOB_SCHEDULING,
)


def _check_no_selector(new: Any, old: Any) -> Causes:
    """Refuse a selector in a template: its Jobs cannot share one."""
    found: list[Cause] = []
    if new.get("selector") is not None:
        found.append(invalid("selector", new["selector"], "`selector` will be auto-generated"))
    if new.get("manualSelector"):
        found.append(unsupported("manualSelector", True, ("nil", "false")))
    return found


#: The spec of a Job template.
JOB_TEMPLATE_SPEC: Check = all_of(JOB_SPEC, _check_no_selector)

# ---------------------------------------------------------------------------------------- selector


def _check_selector(new: Any, old: Any) -> Causes:
    return [required("")] if new is None else check_selector(new, CREATED)


def _template_labels(spec: Object) -> dict[str, str]:
    labels: dict[str, str] = spec.get("template", {}).get("metadata", {}).get("labels", {})
    return labels


def _selector_matches(selector: Object, labels: dict[str, str]) -> bool:
    """Whether the selector matches the template; a malformed selector is reported elsewhere."""
    try:
        return selector_matches(selector, labels)
    except BadSelector:
        return True


def _check_selector_matches_template(new: Any, old: Any) -> Causes:
    labels = _template_labels(new)
    if new.get("selector") is not None and _selector_matches(new["selector"], labels):
        return ()
    detail = "`selector` does not match template `labels`"
    return [invalid("template.metadata.labels", labels, detail)]


def _check_generated_selector(new: Any, old: Any) -> Causes:
    """Require the generated selector and labels unless `manualSelector` is set."""
    spec, meta = new.get("spec", {}), new["metadata"]
    if spec.get("manualSelector") or spec.get("selector") is None:
        return ()
    own = {
        **dict.fromkeys(UID_LABELS, meta.get("uid", "")),
        **dict.fromkeys(NAME_LABELS, meta.get("name", "")),
    }
    found = _check_generated_labels(_template_labels(spec), own)
    if not _selector_matches(spec["selector"], own):
        found.append(invalid("selector", spec["selector"], "`selector` not auto-generated"))
    return prefix_causes("spec", found)


def _check_generated_labels(labels: dict[str, str], own: dict[str, str]) -> list[Cause]:
    found: list[Cause] = []
    for key, value in own.items():
        place, detail = f"template.metadata.labels[{key}]", f"must be '{value}'"
        if key not in labels:
            found.append(required(place, detail))
        elif labels[key] != value:
            found.append(invalid(place, labels, detail))
    return found


# ----------------------------------------------------------------------------------------- updates


def _check_immutable(new: Any, old: Any) -> Causes:
    return () if old is CREATED or new == old else [invalid("", new, IMMUTABLE)]


def _check_completions_update(new: Any, old: Any) -> Causes:
    """Allow an indexed Job to change completions together with parallelism."""
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


def _check_template_update(new: Any, old: Any) -> Causes:
    if old is CREATED:
        return ()
    after, before = (job.get("spec", {}).get("template", {}) for job in (new, old))
    if after == before:
        return ()
    if not _is_suspended_without_pods(old):
        return [invalid("spec.template", None, IMMUTABLE)]
    if _without_mutable_fields(after) == _without_mutable_fields(before):
        return ()
    return [invalid("spec.template.spec", None, IMMUTABLE)]


def _is_suspended_without_pods(job: Object) -> bool:
    """Whether a Job is suspended and its status shows no pods."""
    status = job.get("status", {})
    conditions = status.get("conditions", ())
    suspended = any(c.get("type") == "Suspended" and c.get("status") == "True" for c in conditions)
    stopped = suspended or "startTime" not in status
    return bool(job.get("spec", {}).get("suspend")) and stopped and not status.get("active")


def _without_mutable_fields(template: Object) -> Object:
    """Return a pod template without the fields that may change while the Job has no pods."""
    meta, spec = template.get("metadata", {}), dict(template.get("spec", {}))
    for field in ("nodeSelector", "tolerations", "schedulingGates"):
        spec.pop(field, None)
    affinity = {k: v for k, v in spec.pop("affinity", {}).items() if k != "nodeAffinity"}
    for field in CONTAINER_FIELDS:
        spec[field] = [{**container, "resources": {}} for container in spec.get(field, ())]
    kept = {k: v for k, v in meta.items() if k not in ("labels", "annotations")}
    return {"metadata": kept, "spec": spec, "affinity": affinity}


# ------------------------------------------------------------------------------------------ Job


def _check_pod_name_length(new: Any, old: Any) -> Causes:
    """Require that the host name of the last pod of an indexed Job is a valid DNS label."""
    spec, name = new.get("spec", {}), new["metadata"].get("name", "")
    last = spec.get("completions", 0) - 1
    if not is_indexed(spec) or last < 0 or not validate_dns_label(f"{name}-{last}"):
        return ()
    detail = f"will not able to create pod with invalid DNS label: {name}-{last}"
    return [invalid("metadata.name", name, detail)]


_JOB_OBJECT_SPEC = all_of(
    JOB_SPEC,
    struct(("selector", _check_selector)),
    _check_selector_matches_template,
    _check_completions_update,
    struct(
        ("selector", _check_immutable),
        ("completionMode", _check_immutable),
        ("podFailurePolicy", _check_immutable),
        ("backoffLimitPerIndex", _check_immutable),
        ("managedBy", _check_immutable),
        ("successPolicy", _check_immutable),
        ("gangPolicy", _check_immutable),
    ),
    check_policy_variant_unchanged,
)

check_job: Check = all_of(
    _check_generated_selector,
    struct(("spec", if_present(_JOB_OBJECT_SPEC))),
    _check_template_update,
    _check_pod_name_length,
)


#: The names of the Jobs append a dash and the scheduled minute to the name of their CronJob.
MAX_CRON_JOB_NAME = 52
_is_time_zone_part = re.compile(r"[A-Za-z0-9.\-_+]{1,14}").fullmatch
_CRON_JOB_LIMIT = optional(minimum(0))


def _check_schedule(new: Any, old: Any) -> Causes:
    """Check the schedule: a time zone in it is refused if it is new or `timeZone` is set too."""
    text = new.get("schedule", "")
    if not text:
        return [required("schedule")]
    found: list[Cause] = []
    try:
        parse_schedule(text)
    except BadSchedule as error:
        found.append(invalid("schedule", text, str(error)))
    had_zone = old is not CREATED and "TZ" in (old or {}).get("schedule", "")
    if "TZ" in text and not had_zone:
        detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        found.append(invalid("schedule", text, detail))
    elif "TZ" in text and new.get("timeZone") is not None:
        detail = "cannot use both timeZone field and TZ or CRON_TZ in schedule"
        found.append(invalid("schedule", text, detail))
    return found


@cache
def _known_time_zones() -> frozenset[str]:
    """Return the time zones that the system knows."""
    return frozenset(zoneinfo.available_timezones())


def _check_time_zone(new: Any, old: Any) -> Causes:
    if not new:
        return [invalid("", new, "timeZone must be nil or non-empty string")]
    if new.lower() == "local":
        detail = "timeZone must be an explicit time zone as defined in "
        return [invalid("", new, f"{detail}https://www.iana.org/time-zones")]
    well_formed = all(
        _is_time_zone_part(part) and part not in (".", "..") and part[0] != "-"
        for part in new.split("/")
    )
    # A system without a time zone database accepts every well-formed name.
    if well_formed and (new in _known_time_zones() or not _known_time_zones()):
        return ()
    return [invalid("", new, f"unknown time zone {new}")]


def _check_name_length(new: Any, old: Any) -> Causes:
    name = new["metadata"].get("name", "")
    if len(name) <= MAX_CRON_JOB_NAME:
        return ()
    return [invalid("metadata.name", name, f"must be no more than {MAX_CRON_JOB_NAME} characters")]


_CRON_JOB_SPEC = all_of(
    _check_schedule,
    struct(
        ("startingDeadlineSeconds", _CRON_JOB_LIMIT),
        ("timeZone", if_changed(if_present(_check_time_zone))),
        ("concurrencyPolicy", mandatory(one_of("Allow", "Forbid", "Replace"))),
        ("jobTemplate", struct(("spec", if_present(JOB_TEMPLATE_SPEC)))),
        ("successfulJobsHistoryLimit", _CRON_JOB_LIMIT),
        ("failedJobsHistoryLimit", _CRON_JOB_LIMIT),
    ),
)

check_cron_job: Check = all_of(
    struct(("spec", if_present(_CRON_JOB_SPEC))), on_create(_check_name_length)
)
