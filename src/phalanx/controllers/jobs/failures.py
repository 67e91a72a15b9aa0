"""What to do about failed pods: the Job's failure policy, and the limits of each index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from phalanx.api.batch import ExitCodes, FailureRule
from phalanx.api.core import ContainerStatus, Pod
from phalanx.controllers.jobs.indexset import Indexes
from phalanx.controllers.jobs.roll import Roll, failures_before, index_of

COUNT, IGNORE, FAIL_INDEX, FAIL_JOB = "Count", "Ignore", "FailIndex", "FailJob"


class Match(NamedTuple):
    """The rule that a failed pod falls under: what it does, and why, in words."""

    action: str
    message: str = ""


def judge(roll: Roll, pod: Pod) -> Match:
    """What the policy says of a failed pod; without a word from it the failure counts."""
    policy = roll.job.spec.pod_failure_policy
    for number, rule in enumerate(policy.rules if policy else ()):
        if why := _falls_under(rule, pod):
            text = f"{why} matching {rule.action} rule at index {number}"
            if rule.action != FAIL_INDEX or roll.job.spec.backoff_limit_per_index is not None:
                return Match(rule.action, text)
    return Match(COUNT)


def counted(roll: Roll, pods: Iterable[Pod]) -> list[Pod]:
    """The failed pods that are not to be ignored."""
    return [pod for pod in pods if judge(roll, pod).action != IGNORE]


def failed_indexes(roll: Roll) -> Indexes:
    """The indexes that are given up: failed too often, or by the policy."""
    limit = roll.job.spec.backoff_limit_per_index
    if limit is None:
        return roll.failed_before
    given_up = {
        index_of(pod)
        for pod in roll.tracked
        if roll.has_failed(pod) and roll.belongs(pod) and _is_last(roll, pod, limit)
    }
    return roll.failed_before | (given_up - roll.succeeded_indexes)


def _is_last(roll: Roll, pod: Pod, limit: int) -> bool:
    match judge(roll, pod).action:
        case "FailIndex":
            return True
        case "Ignore":
            return False
        case _:
            return failures_before(pod) >= limit


def _falls_under(rule: FailureRule, pod: Pod) -> str:
    """Why a rule is about a pod; "" if it is not."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if rule.on_exit_codes:
        return _exit(rule.on_exit_codes, pod, name)
    held = {(one.type, one.status) for one in pod.status.conditions}
    for pattern in rule.on_pod_conditions:
        if (pattern.type, pattern.status or "True") in held:
            return f"Pod {name} has condition {pattern.type}"
    return ""


def _exit(codes: ExitCodes, pod: Pod, name: str) -> str:
    status = pod.status
    for container in (*status.container_statuses, *status.init_container_statuses):
        code = _code(container, codes)
        if code and (code in codes.values) == (codes.operator == "In"):
            return f"Container {container.name} for pod {name} failed with exit code {code}"
    return ""


def _code(container: ContainerStatus, codes: ExitCodes) -> int:
    """The exit code of a container that is meant; 0 if there is none."""
    ended = container.state.terminated
    meant = codes.container_name in ("", container.name)
    return ended.exit_code if ended and meant else 0
