"""Controllers of PodGroups and CompositePodGroups.

protection.py          keeps a deleted PodGroup while live pods refer to it
composite_groups.py    counts and Degraded condition of CompositePodGroups
replica_groups.py      creates PodGroups for pods that name a Workload template
"""
