"""The scheduler core: queue, scheduling cycle, decision. Pure functions over plain values.

Everything is a function of its arguments: `now` is passed in, ties go to the lower name. Nothing
here calls the API, waits, logs, reads a clock or uses randomness; `controllers/scheduling/` does.
Start reading at `cycle.py`. Modules, each importing only those below it (see `.importlinter`):

    diagnosis/               why an entity is pending, what would help, what-if
    queue/                   which entity is tried next; scheduler state and its decision log
    configuration/           KubeSchedulerConfiguration: profiles, plugins, arguments
    shortfall.py             the room that refused gangs lack, for autoscalers
    cycle.py                 decide: an entity, a snapshot and a policy in, a decision out
    reservation/             keeps room for entities that have waited for long; backfill
    preemption/              which pods to evict
    group_tree_placement.py  places a tree of groups as one entity
    search/                  searches for a placement where the greedy attempt fails
    placement/               places the members of one group greedily
    policy.py                the plugins of each profile, back-off
    plugins/                 filters and scores
    entity.py                Entity: what the queue passes to the cycle
    cluster/                 the cache and its snapshots: nodes, pods, groups
    devices/                 devices of nodes, claims for them, allocation
    volumes/                 volumes, claims for them, attach limits
    explain.py               decisions as messages
    decision.py              decisions and events: plain values
"""
