"""Reservations: room that is kept for entities that have waited for long, and backfill.

    run_times.py         when the pods on nodes are expected to end, and what pending pods declare
    pod_ends.py          the same as arrays, and the cluster after some of the pods have ended
    end_timeline.py      what is released on each node by when, and how many members then fit
    reservation.py       Reservation, and what reservations keep from an entity (ReservationHolds)
    reserved_claims.py   the devices and attach slots that a reservation keeps
    planner.py           plans one reservation: the earliest start, and the nodes
    ranked_placement.py  places an entity on the nodes that are preferred for its reservation
    plan_basis.py        whether a new plan would be the same, so that it need not be made
    tracker.py           which entities get one, in order; what is kept between passes

Planning is a function of the snapshot, the waiting entities in order and `now`.
"""
