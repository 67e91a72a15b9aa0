"""The cluster as the scheduler knows it: observed objects in, snapshots out. No decisions here.

A cycle reads one snapshot from start to end; only the cache writes to it, between cycles.
Modules, each importing only those below it (`node_constraints` names `Snapshot` as a type):

    cache.py               SchedulerCache: observed objects and assumed bindings, makes snapshots
    device_cache.py        DeviceCache: observed claims and devices, assumed allocations
    volume_cache.py        VolumeCache: observed volumes and claims, assumed bindings
    cache_entries.py       what the cache knows about one node, one pod and assumed claims
    cluster_delta.py       ClusterDelta: what a change of nodes or pods adds for waiting entities
    hypothetical.py        snapshots without some pods, or with some more
    snapshot.py            Snapshot: nodes as arrays, one row each; NodeClass: one row as integers
    node_index.py          indexes of nodes by name, label and image; how rows move
    pod_index.py           PodIndex: which pods run where, counted by selector
    group_tree.py          GroupTrees: PodGroups below CompositePodGroups
    pod_shape.py           PodShape: all that filters and scores read of a pod
    node_constraints.py    what a pod requires or prefers of nodes
    peer_constraints.py    what a pod requires or prefers of other pods
"""
