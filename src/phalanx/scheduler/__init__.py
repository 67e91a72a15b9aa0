"""QUEUE -> CYCLE -> DECISION: what runs where, decided by pure functions over plain values.

Pods and PodGroups come in through `queue.py` (what to try next) and `cache.py` (what the cluster
looks like); `cycle.decide` places an entity on a snapshot, whole or not at all; `explain.py` puts
the decision into sentences. Start reading at `cycle.py`.

Everything is a function of its arguments: `now` is passed in, ties go to the lower name. This room
does not talk to the API, wait, log, read a clock or draw lots; `controllers/` does that around it.
"""
