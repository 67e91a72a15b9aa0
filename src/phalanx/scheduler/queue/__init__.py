"""The scheduling queue, the state of a scheduler, and the decision log.

    scheduler_state.py   cache and queue together, loaded from API objects; every step of a
                         scheduler goes through it
    scheduling_queue.py  which entity is attempted next
    queue_listing.py     what the queue contains, for listings and metrics
    queued_entity.py     what the queue knows about one entity
    wake_condition.py    which changes may cure a refusal
    waiting_entities.py  the refused entities by their wake condition, pending pods by claim
    refusal_memo.py      one refusal for equal entities
    decision_log.py      every step as a record that can be written
    replay.py            repeats the steps of a decision log and compares the decisions

Everything here is pure: `now` is an argument, and nothing reads files or the API.
"""
