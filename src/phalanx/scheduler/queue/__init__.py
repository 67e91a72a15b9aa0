"""The scheduling queue, the state of a scheduler, and the decision log.

    scheduler_state.py   cache and queue together; every step of a scheduler goes through it
    cluster_objects.py   loads API objects into that state
    scheduling_queue.py  which entity is attempted next
    queued_entity.py     what the queue knows about one entity
    decision_log.py      every step as a record that can be written
    replay.py            repeats the steps of a decision log and compares the decisions

Everything here is pure: `now` is an argument, and nothing reads files or the API.
"""
