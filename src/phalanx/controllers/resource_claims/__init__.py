"""The resource claim controllers: create ResourceClaims from templates, and manage reservations.

    controller               creates the claims of pods and PodGroups and records their names
    reservations             which claims a pod uses or shares with its PodGroup; keeps
                             `status.reservedFor`, deallocates unused claims and deletes them
    device_taint_eviction    evicts pods whose devices have NoExecute taints; status of taint rules

Allocating devices is up to the scheduler.
"""
