"""What to do about failed pods: the Job's failure policy, and the limits of each index."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from phalanx.api.batch import ExitCodes, FailureRule
from phalanx.api.core import ContainerStatus, Pod
from phalanx.controllers.jobs.indexset import Indexes
from phalanx.controllers.jobs.roll import Roll, attempts_before, failures_before, index_of

COUNT, IGNORE, FAIL_INDEX, FAIL_JOB = "Count", "Ignore", "FailIndex", "FailJob"


class Match(NamedTuple):
    """The rule that a failed pod falls under: what it does, and why, in words."""

    action: str
    message: str = ""


class Failures:
    """The failed pods of a roll in the light of the Job's policy; each is judged once."""

    def __init__(self, roll: Roll) -> None:
        self._roll = roll
        self._spec = roll.job.spec
        self._matches: dict[str, Match] = {}

    def judge(self, pod: Pod) -> Match:
        """What the policy says of a failed pod; without a word from it the failure counts."""
        uid = pod.metadata.uid
        if uid not in self._matches:
            self._matches[uid] = self._judge(pod)
        return self._matches[uid]

    def is_ignored(self, pod: Pod) -> bool:
        """Whether the failure of a pod does not count."""
        return self.judge(pod).action == IGNORE

    @cached_property
    def given_up(self) -> Indexes:
        """The indexes of which no more pods are made: failed too often, or by the policy."""
        roll, limit = self._roll, self._spec.backoff_limit_per_index
        if limit is None:
            return roll.failed_before
        failed = (pod for pod in roll.tracked if roll.has_failed(pod) and roll.belongs(pod))
        last = {index_of(pod) for pod in failed if self._is_last(pod, limit)}
        return roll.failed_before | (last - roll.succeeded_indexes)

    @cached_property
    def last_failed(self) -> dict[int, Pod]:
        """Of each index the failed pod that came last, as long as it was not let go."""
        failed = [pod for pod in self._roll.tracked if self._roll.has_failed(pod)]
        return {index_of(pod): pod for pod in sorted(failed, key=_order)}

    def is_needed(self, pod: Pod) -> bool:
        """Whether the next pod of the index must still read from this one how often it failed."""
        if self._spec.backoff_limit_per_index is None or not self._roll.belongs(pod):
            return False
        index = index_of(pod)
        is_over = index in self.given_up or index in self._roll.succeeded_indexes
        is_last = self._attempts[index] == attempts_before(pod)
        return not is_over and is_last and self.last_failed[index] is pod

    def is_unaware(self, pod: Pod) -> bool:
        """Whether a pod does not know that its index has failed before it: it was made in error."""
        last = self.last_failed.get(index_of(pod))
        has_limit = self._spec.backoff_limit_per_index is not None
        return has_limit and last is not None and attempts_before(pod) <= attempts_before(last)

    @cached_property
    def _attempts(self) -> dict[int, int]:
        """The most that a pod of each index knows of."""
        known = sorted((attempts_before(pod), index_of(pod)) for pod in self._roll.pods)
        return {index: attempts for attempts, index in known}

    def _judge(self, pod: Pod) -> Match:
        policy = self._spec.pod_failure_policy
        for number, rule in enumerate(policy.rules if policy else ()):
            if why := _falls_under(rule, pod):
                text = f"{why} matching {rule.action} rule at index {number}"
                if rule.action != FAIL_INDEX or self._spec.backoff_limit_per_index is not None:
                    return Match(rule.action, text)
        return Match(COUNT)

    def _is_last(self, pod: Pod, limit: int) -> bool:
        match self.judge(pod).action:
            case "FailIndex":
                return True
            case "Ignore":
                return False
            case _:
                return failures_before(pod) >= limit


def _order(pod: Pod) -> tuple[int, str, str]:
    """By when pods of one index came."""
    return attempts_before(pod), pod.metadata.creation_timestamp, pod.metadata.name


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
