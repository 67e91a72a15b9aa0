"""JobSet as its controller reads it, and the labels of its Jobs and pods.

The structs are partial and frozen; the templates of Jobs stay JSON, because Jobs copy them.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from phalanx.api.kinds import JOB_SET
from phalanx.api.meta import Condition, ObjectMeta, find_condition
from phalanx.api.wire import Object

COMPLETED, FAILED, SUSPENDED = "Completed", "Failed", "Suspended"
STARTUP_IN_PROGRESS = "StartupPolicyInProgress"
STARTUP_COMPLETED = "StartupPolicyCompleted"
#: The default of `spec.managedBy`.
JOB_SET_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"

_PREFIX = "jobset.sigs.k8s.io/"
JOB_SET_NAME = f"{_PREFIX}jobset-name"
JOB_SET_UID = f"{_PREFIX}jobset-uid"
REPLICATED_JOB_NAME = f"{_PREFIX}replicatedjob-name"
REPLICATED_JOB_REPLICAS = f"{_PREFIX}replicatedjob-replicas"
GLOBAL_REPLICAS = f"{_PREFIX}global-replicas"
JOB_INDEX = f"{_PREFIX}job-index"
JOB_GLOBAL_INDEX = f"{_PREFIX}job-global-index"
JOB_KEY = f"{_PREFIX}job-key"
RESTART_ATTEMPT = f"{_PREFIX}restart-attempt"
JOB_RESTART_ATTEMPT = f"{_PREFIX}job-restart-attempt"
GROUP_NAME = f"{_PREFIX}group-name"
GROUP_REPLICAS = f"{_PREFIX}group-replicas"
JOB_GROUP_INDEX = f"{_PREFIX}job-group-index"
COORDINATOR = f"{_PREFIX}coordinator"
#: The labels of Jobs and pods, also annotations, whose values are names, uids or numbers.
JOB_SET_LABELS = (
    JOB_SET_NAME,
    JOB_SET_UID,
    REPLICATED_JOB_NAME,
    REPLICATED_JOB_REPLICAS,
    GLOBAL_REPLICAS,
    JOB_INDEX,
    JOB_GLOBAL_INDEX,
    JOB_KEY,
    RESTART_ATTEMPT,
    JOB_RESTART_ATTEMPT,
    GROUP_NAME,
    GROUP_REPLICAS,
    JOB_GROUP_INDEX,
)
#: On a JobSet or a replicated Job: the node label of whose value each Job gets a domain to itself.
EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
#: On a JobSet or a replicated Job: nodes are labelled beforehand, pods select them by the label.
NODE_SELECTOR_STRATEGY = "alpha.jobset.sigs.k8s.io/node-selector"
#: The node label of that strategy, and the key of the taint that its pods tolerate.
NAMESPACED_JOB = "alpha.jobset.sigs.k8s.io/namespaced-job"
NO_SCHEDULE_TAINT = "alpha.jobset.sigs.k8s.io/no-schedule"


class JobDependency(Struct, frozen=True):
    """A replicated Job that must be Ready or Complete before another one starts."""

    name: str = ""
    status: str = "Ready"


class ReplicatedJobSpec(Struct, frozen=True, rename="camel"):
    """A replicated Job: a template and the number of its Jobs."""

    name: str = ""
    group_name: str = "default"
    template: dict[str, Any] = {}
    replicas: int = 1
    depends_on: tuple[JobDependency, ...] = ()


class JobSetNetwork(
    Struct,
    frozen=True,
    rename={
        "enable_dns_hostnames": "enableDNSHostnames",
        "publish_not_ready_addresses": "publishNotReadyAddresses",
    },
):
    """How the pods of a JobSet reach each other."""

    enable_dns_hostnames: bool = True
    subdomain: str = ""
    publish_not_ready_addresses: bool = True


class JobSetSuccessPolicy(Struct, frozen=True, rename="camel"):
    """Which Jobs must succeed: All or Any of the targets; no targets means all."""

    operator: str = "All"
    target_replicated_jobs: tuple[str, ...] = ()


class JobSetFailureRule(Struct, frozen=True, rename="camel"):
    """What to do if a Job of a target fails for a reason, with a message."""

    name: str = ""
    action: str = ""
    on_job_failure_reasons: tuple[str, ...] = ()
    on_job_failure_message_patterns: tuple[str, ...] = ()
    target_replicated_jobs: tuple[str, ...] = ()


class JobSetFailurePolicy(Struct, frozen=True, rename="camel"):
    """How often a JobSet restarts, how, and the rules, of which the first that matches applies."""

    max_restarts: int = 0
    restart_strategy: str = "Recreate"
    rules: tuple[JobSetFailureRule, ...] = ()


class JobSetStartupPolicy(Struct, frozen=True, rename="camel"):
    """The order in which replicated Jobs start."""

    startup_policy_order: str = "AnyOrder"


class JobSetCoordinator(Struct, frozen=True, rename="camel"):
    """The pod whose address all pods are given."""

    replicated_job: str = ""
    job_index: int = 0
    pod_index: int = 0


class JobSetSpec(Struct, frozen=True, rename="camel"):
    """The spec of a JobSet."""

    replicated_jobs: tuple[ReplicatedJobSpec, ...] = ()
    network: JobSetNetwork = JobSetNetwork()
    success_policy: JobSetSuccessPolicy = JobSetSuccessPolicy()
    failure_policy: JobSetFailurePolicy | None = None
    startup_policy: JobSetStartupPolicy = JobSetStartupPolicy()
    suspend: bool = False
    coordinator: JobSetCoordinator | None = None
    managed_by: str = ""
    ttl_seconds_after_finished: int | None = None
    scheduling: dict[str, Any] | None = None
    volume_claim_policies: tuple[dict[str, Any], ...] = ()

    @property
    def starts_in_order(self) -> bool:
        """Whether each replicated Job starts after the one before it."""
        return self.startup_policy.startup_policy_order == "InOrder"


class ReplicatedJobStatus(Struct, frozen=True, rename="camel"):
    """How many Jobs of a replicated Job are in which state, and restarts by index of the Job."""

    name: str = ""
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    active: int = 0
    suspended: int = 0
    job_restarts: tuple[int, ...] = ()
    job_restarts_count_towards_max: tuple[int, ...] = ()


class JobSetStatus(Struct, frozen=True, rename="camel"):
    """The status of a JobSet."""

    conditions: tuple[Condition, ...] = ()
    restarts: int = 0
    restarts_count_towards_max: int = 0
    terminal_state: str = ""
    replicated_jobs_status: tuple[ReplicatedJobStatus, ...] = ()


class JobSet(Struct, frozen=True):
    """A JobSet: several Jobs that work as one."""

    metadata: ObjectMeta
    spec: JobSetSpec = JobSetSpec()
    status: JobSetStatus = JobSetStatus()

    def true_condition(self, kind: str) -> Condition | None:
        """Return the condition of a type if its status is True."""
        found = find_condition(self.status.conditions, kind)
        return found if found and found.status == "True" else None

    @property
    def end_condition(self) -> Condition | None:
        """The condition Completed or Failed, once the JobSet has ended."""
        return self.true_condition(COMPLETED) or self.true_condition(FAILED)

    @property
    def subdomain(self) -> str:
        """The domain of the host names of its pods, and the name of its Service."""
        return self.spec.network.subdomain or self.metadata.name


def job_set_object(job_set: JobSet) -> Object:
    """Encode the fields of a JobSet that the builder reads."""
    meta, spec = job_set.metadata, job_set.spec
    owners = [
        {
            "apiVersion": one.api_version,
            "kind": one.kind,
            "name": one.name,
            "uid": one.uid,
            "controller": bool(one.controller),
        }
        for one in meta.owner_references
    ]
    scheduling = {"scheduling": spec.scheduling} if spec.scheduling is not None else {}
    return {
        "apiVersion": JOB_SET.api_version,
        "kind": JOB_SET.name,
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "annotations": meta.annotations,
            "ownerReferences": owners,
        },
        "spec": {
            "replicatedJobs": [
                {
                    "name": one.name,
                    "replicas": one.replicas,
                    "template": one.template,
                    "dependsOn": [{"name": other.name} for other in one.depends_on],
                }
                for one in spec.replicated_jobs
            ],
            "startupPolicy": {"startupPolicyOrder": spec.startup_policy.startup_policy_order},
            **scheduling,
        },
    }
