"""ReplicaSets and ReplicationControllers: a number of equal pods.

controller   informers, work queue, adoption and release of pods, one sync
replicas     how many pods to create, which to delete, and the status
"""
