"""Volumes: which claims are bound, which volumes are free, what the claims of a pod require.

    state    VolumeState: volumes, claims, classes, attach limits; the pods that use them
    demand   VolumeDemand: what the claims of a pod require of its node

Nodes are names here; `plugins/volume_assignments.py` connects volumes with a snapshot.
"""
