"""The Job controller: creates, counts and replaces pods until a Job completes or fails.

Every decision is a pure function of the Job, its pods and the time; `controller` performs it. A pod
is counted exactly once: its uid is in the status before its finalizer is removed.

    controller           informers, queue of Jobs, one sync of a Job in order
    job_pods             which pods the Job owns, adopts and releases; their states and indexes
    completion           whether the Job is over, and why
    replicas             which pods to create and delete, also under a ResourceQuota
    restart              gangs that are restarted because lost members cannot be replaced
    sync                 the plan of a sync, pod counts and the new status
    pod_operations       requests for pods; orphan pods
    quota_estimator      asks the ResourceQuotas before pods of a gang are created
    scheduling_intent    what the Job asks of scheduling; lookup of its Workload and PodGroup
    workload_objects     ensures the Workload and PodGroup of one Job before its pods
    workload_manager     the caches of Workloads and PodGroups, and the Jobs that they concern
    job_groups           PodGroups of gang Jobs that another controller runs
    metrics              what is measured

`docs/jobs.md` describes what users see.
"""
