"""Answers questions about a cluster that is given as objects: why is a pod pending, and what if?

    diagnosis.py          why a pod or group is pending, with evidence and cures (`phalanx why`)
    capacity_evidence.py  how many members fit where, and what limits them: also volume claims
    cures.py              the smallest changes that let it be placed, each verified
    relax_constraints.py  cures that edit the group or its pods
    experiment.py         decides about an entity after a change, and undoes the change
    what_if.py            forecasts on a changed cluster (`phalanx what-if`)
    expected_starts.py    when each waiting entity is expected to start, by the planner
    start_forecast.py     between which times, by a simulation of the queue ahead
    queue_order.py        running and waiting workloads in queue order (`phalanx queue`, `top`)

The same queue and cycle decide as in the running scheduler. Nothing is bound, evicted or written.
"""
