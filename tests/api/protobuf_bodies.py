"""Protobuf bodies that kubectl sent, and handwritten ones, with their JSON."""

from __future__ import annotations

# ---- bodies that kubectl sent, and what it shows as JSON of the same -----------------------------

KUBECTL_BODIES = {
    "create namespace team-a": (
        "azhzAAoPCgJ2MRIJTmFtZXNwYWNlEh4KFgoGdGVhbS1hEgAaACIAKgAyADgAQgASABoCCgAaACIA",
        '{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "team-a", '
        '"creationTimestamp": null}, "spec": {}, "status": {}}',
    ),
    "create configmap mixed --from-file=bin.dat --from-literal=a=b": (
        "azhzAAoPCgJ2MRIJQ29uZmlnTWFwEi8KFQoFbWl4ZWQSABoAIgAqADIAOABCABIGCgFhEgFiGg4KB2Jpbi5kYXQSAw"
        "D/ARoAIgA=",
        '{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "mixed", '
        '"creationTimestamp": null}, "data": {"a": "b"}, "binaryData": {"bin.dat": "AP8B"}}',
    ),
    "create job pi --image=perl -- perl -e 'print 1'": (
        "azhzAAoPCghiYXRjaC92MRIDSm9iEooBChIKAnBpEgAaACIAKgAyADgAQgASajJoChAKABIAGgAiACoAMgA4AEIAEl"
        "QSMQoCcGkSBHBlcmwaBHBlcmwaAi1lGgdwcmludCAxKgBCAGoAcgCAAQCIAQCQAQCiAQAaBU5ldmVyMgBCAEoAUgBY"
        "AGAAaACCAQCKAQCaAQDCAQAaCCAAKAAwADoAGgAiAA==",
        '{"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": "pi", '
        '"creationTimestamp": null}, "spec": {"template": {"metadata": {"creationTimestamp": '
        'null}, "spec": {"containers": [{"name": "pi", "image": "perl", "command": ["perl", '
        '"-e", "print 1"], "resources": {}}], "restartPolicy": "Never"}}}, "status": {}}',
    ),
    "create priorityclass high --value=1000 --description=d --preemption-policy=Never": (
        "azhzAAolChRzY2hlZHVsaW5nLms4cy5pby92MRINUHJpb3JpdHlDbGFzcxIlChQKBGhpZ2gSABoAIgAqADIAOABCAB"
        "DoBxgAIgFkKgVOZXZlchoAIgA=",
        '{"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": '
        '"high", "creationTimestamp": null}, "value": 1000, "description": "d", '
        '"preemptionPolicy": "Never"}',
    ),
}
DRAIN_BODY = "azhzAAoTCgJ2MRINRGVsZXRlT3B0aW9ucxIAGgAiAA=="
CAN_I_BODY = (
    "azhzAAoyChdhdXRob3JpemF0aW9uLms4cy5pby92MRIXU2VsZlN1YmplY3RBY2Nlc3NSZXZpZXcSPwoQCgASABoA"
    "IgAqADIAOABCABIhCh8KB2RlZmF1bHQSBmNyZWF0ZRoAIgAqBHBvZHMyADoAGggIABIAGgAgABoAIgA="
)
TOKEN_BODY = (
    "azhzAAooChhhdXRoZW50aWNhdGlvbi5rOHMuaW8vdjESDFRva2VuUmVxdWVzdBIdChAKABIAGgAiACoAMgA4AEIA"
    "EgMgkBwaBAoAEgAaACIA"
)


# ---- bodies made by hand -------------------------------------------------------------------------

NAMESPACE = (
    b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x17"
    b"\x0a\x15\x0a\x06team-a"  # metadata.name
    b"\x5a\x0b\x0a\x04tier\x12\x03gpu"  # metadata.labels
)
POD = (
    b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x4b"
    b"\x0a\x03\x0a\x01p"  # metadata.name
    b"\x12\x44\x12\x34\x0a\x01c\x12\x03img"  # spec.containers: name, image
    b"\x32\x08\x18\x90\x3f\x22\x03TCP"  # ports: containerPort, protocol
    b"\x42\x20\x0a\x0f\x0a\x06memory\x12\x05\x0a\x031Gi"  # resources.limits
    b"\x12\x0d\x0a\x03cpu\x12\x06\x0a\x04500m"  # resources.requests
    b"\x20\x1e"  # spec.terminationGracePeriodSeconds
    b"\xc8\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # spec.priority
)
JOB = (
    b"k8s\0\x0a\x0f\x0a\x08batch/v1\x12\x03Job\x12\x18"
    b"\x0a\x03\x0a\x01j"  # metadata.name
    b"\x12\x11\x08\x04\x10\x04\x38\x00"  # spec.parallelism, completions, backoffLimit
    b"\x4a\x07Indexed\x50\x01"  # spec.completionMode, suspend
)
CONFIG_MAP = (
    b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x19"
    b"\x0a\x03\x0a\x01m"  # metadata.name
    b"\x12\x06\x0a\x01a\x12\x01b"  # data
    b"\x1a\x08\x0a\x01k\x12\x03\x00\xff\x01"  # binaryData
    b"\x20\x01"  # immutable
)
DELETE_OPTIONS = (
    b"k8s\0\x0a\x19\x0a\x08batch/v1\x12\x0dDeleteOptions\x12\x1e"
    b"\x08\x00"  # gracePeriodSeconds
    b"\x12\x09\x0a\x03u-1\x12\x0242"  # preconditions: uid, resourceVersion
    b"\x22\x0aBackground"  # propagationPolicy
    b"\x2a\x03All"  # dryRun
)
LEASE = (
    b"k8s\0\x0a\x1f\x0a\x16coordination.k8s.io/v1\x12\x05Lease\x12\x12"
    b"\x12\x10\x0a\x01h\x10\x28"  # spec.holderIdentity, leaseDurationSeconds
    b"\x22\x09\x08\x80\xf2\xd6\xca\x06\x10\xe8\x07"  # spec.renewTime: seconds, nanos
)
HANDWRITTEN_BODIES = {
    NAMESPACE: '{"apiVersion": "v1", "kind": "Namespace",'
    ' "metadata": {"name": "team-a", "labels": {"tier": "gpu"}}}',
    POD: '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": ['
    '{"name": "c", "image": "img", "ports": [{"containerPort": 8080, "protocol": "TCP"}],'
    ' "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "500m"}}}],'
    ' "terminationGracePeriodSeconds": 30, "priority": -1}}',
    JOB: '{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {'
    '"parallelism": 4, "completions": 4, "backoffLimit": 0, "completionMode": "Indexed",'
    ' "suspend": true}}',
    CONFIG_MAP: '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"},'
    ' "data": {"a": "b"}, "binaryData": {"k": "AP8B"}, "immutable": true}',
    DELETE_OPTIONS: '{"apiVersion": "batch/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,'
    ' "preconditions": {"uid": "u-1", "resourceVersion": "42"},'
    ' "propagationPolicy": "Background", "dryRun": ["All"]}',
    LEASE: '{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {'
    '"holderIdentity": "h", "leaseDurationSeconds": 40,'
    ' "renewTime": "2026-01-01T00:00:00.000001Z"}}',
}
