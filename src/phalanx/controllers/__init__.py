"""Controllers and the scheduler's control loop: everything that acts on a cluster through the API.

Each learns the state of the cluster from informers, decides with pure functions, and acts through a
`Client`: the same code runs inside `phalanx up`, against any API server, and in virtual time. A
controller never touches a store.

    reconcile_loop.py        informers → work queue → reconcile → actions, shared by all controllers
    event_recorder.py        Events, written at low priority and aggregated
    registry.py              the table of controllers: names, required kinds, constructors
    leadership.py            waits for an API server, fills caches, leads, and starts over
    controller_manager.py    the controllers beside an API server
    scheduler_runner.py      the scheduler beside an API server
    scheduling/              the scheduler: pop, decide, assume, bind or evict, write status
    nodes/                   hosted nodes with their kubelets; node lifecycle; taint eviction
    pod_groups.py            PodGroup protection, CompositePodGroup status, replica groups
    jobs/, cron_jobs/        Jobs with their pods and Workloads, or with groups alone; CronJobs
    job_sets/                JobSets with their Jobs, Service and tree of groups
    leader_worker_sets/      LeaderWorkerSets with their StatefulSets and groups
    workload_operations.py   performs what `WorkloadBuilder.ensure` plans
    deployments/             Deployments with their ReplicaSets
    daemon_sets/             DaemonSets with their pods and revisions
    endpoints/               EndpointSlices and Endpoints of Services
    replica_sets/            ReplicaSets and ReplicationControllers with their pods
    stateful_sets/           StatefulSets with their pods, claims and revisions
    volumes/                 binding, protection and provisioning of volumes
    resource_claims/         ResourceClaims of pods and groups; eviction by device taints
    garbage_collector.py     deletes dependents of absent owners, by the propagation policy
    ownership_graph.py       owners and dependents over all kinds, for the garbage collector
    pod_ownership.py         adoption, release and pods of a template, for all workloads
    pod_control.py           creates and deletes pods in batches
    write_tracker.py         whether the caches show the last writes
    resource_monitors.py     informers of every deletable kind, custom kinds included
    workload_migration.py    moves groups to `scheduling.k8s.io` (`phalanx migrate`)
    autoscaling.py           HorizontalPodAutoscalers: replicas within bounds, without metrics
    admission_policies.py    status.typeChecking of ValidatingAdmissionPolicies
    namespace_objects.py     the ServiceAccount and the ConfigMap that every namespace has
    namespaces.py, disruption.py, pod_garbage_collector.py, role_aggregation.py,
    ttl_after_finished.py
"""
