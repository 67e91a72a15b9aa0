"""Validation: the causes for which an object is refused, each with its field path.

A check never changes an object and never reads another one. `registry.validate` is the entry point
for built-in kinds; the server calls the checks of CustomResourceDefinitions itself.

    checks.py                             the combinators that all checks are written in
    registry.py                           the check of every kind and subresource, and small kinds
    metadata.py, resources.py             metadata, selectors, conditions; quantities, quotas
    pod.py, pod_spec.py, pod_template.py  Pods, pod specs, templates
    containers.py, volumes.py, pod_scheduling.py    parts of a pod spec; PersistentVolumes
    pod_os.py                             fields of Linux and Windows pods
    pod_group.py                          PodGroups, CompositePodGroups, Workloads
    job.py, job_policies.py, job_status.py          Jobs and CronJobs
    job_set.py, job_set_policies.py, leader_worker_set.py    kinds that create Jobs or pods
    replicated_workloads.py, stateful_set.py        Deployments and the like; StatefulSets
    core_kinds.py, policy.py, dynamic_resources.py  Nodes, Secrets; budgets, RBAC; devices
    service.py, endpoint_slice.py, networking.py    Services, EndpointSlices, Ingresses
    storage.py, cluster_services.py       storage.k8s.io; autoscalers, certificates, flow control
    admission_registration.py             webhook configurations, admission policies
    warnings.py, pod_warnings.py          warnings about valid objects
    custom_resource_definition.py, structural_schema.py, schema_values.py    custom resources
"""
