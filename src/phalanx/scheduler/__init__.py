"""QUEUE -> CYCLE -> DECISION: what runs where, decided by pure functions over plain values.

Start reading at `cycle.py`. Below it, each room knows only those under it; above it, those who use
it (a contract in `.importlinter` holds that):

    asking/      why something waits, what would cure it, what if
    queueing/    what is to be tried next, and the desk that keeps queue and cache
    settings/    a policy as people write it
    cycle.py     an entity, a snapshot and a policy in, a decision out
    evicting/    who must go
    branches.py  a group of groups as one
    rescue/      when one after the other does not do
    placing/     members on nodes, on paper, greedy and cheap
    judging/     filters and scores, tables of rows (`policy.py` is a choice of them)
    cluster/     the cache and its snapshots: nodes, pods, groups, and what pods ask for

`decision.py` has the words for what comes of it, and `explain.py` puts them into sentences.
Everything is a function of its arguments: `now` is passed in, ties go to the lower name. Nothing
here talks to the API, waits, logs, reads a clock or draws lots; `controllers/` does that around it.
"""
