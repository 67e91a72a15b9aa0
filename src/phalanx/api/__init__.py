"""The Kubernetes API as pure values and functions: kinds, schemas, defaulting, validation, errors.

Every other package may use this one, and it imports none of them. It does no I/O apart from reading
its package data, reads no clock and uses no randomness.

    kind.py, kinds.py, platform_kinds.py, strategy.py
                                  one row per kind, and how objects of a kind are processed
    core.py, batch.py, scheduling.py, apps.py, storage.py, job_sets.py, leader_worker_sets.py,
    dynamic_resources.py, other_kinds.py
                                  frozen structs with the fields that our components read
    scheme.py                     which struct decodes which kind
    workload_sources.py           kinds that are read as PodGroups where a server has none
    meta.py, errors.py, wire.py   Key, Ref and ObjectMeta; API errors; requests and replies
    definitions.py, schema.py, normalization.py   schema data, access to it, pruning and type checks
    openapi.py                    OpenAPI schemas of kinds (`server/discovery.py` serves them)
    protobuf.py, protobuf_encoder.py      protobuf bodies of requests and answers
    patch.py, selectors.py        patches; label and field selectors
    resources.py, formats.py, regex.py, cron_schedule.py      values and their syntax
    quota_usage.py                how much of a ResourceQuota an object uses
    feature_gates.py              feature gates, and the fields that they guard
    validation/, defaults/        validation and defaulting of each kind
    conversion/                   served versions and the stored one; older field names
    field_management/             managedFields and server-side apply
    printing/                     the columns of `kubectl get`
    custom_resources/, cel/       kinds defined by CustomResourceDefinitions, and their CEL rules
    device_selectors.py           CEL expressions that select devices
"""
