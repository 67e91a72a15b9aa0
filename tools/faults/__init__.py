"""Fault injection: a control plane under random faults, generated from one seed.

    plan ─▶ environment ─▶ server, schedulers behind faulty channels ─▶ model ─▶ auditor  (always)
                                                                           └─▶ steady_state (at end)

    fault_run.py             runs the steps of a plan and checks; start reading here
    plan.py, steps.py, manifests.py    the steps of a seed, and the objects that they create
    claim_plan.py            volumes, devices and gangs that claim them
    claim_checks.py          their invariants, and decisions about pods with claims
    environment.py, channel.py         server, users and schedulers; faulty transports
    scheduler_instance.py    one scheduler with a verifier; the register of all decisions
    model.py                 what is true, read from the store's log
    steady_state.py          what must hold when nothing happens any more

A seed generates a list of steps; any part of the list can be run again, which is how a failure is
shrunk. Everything that is checked is product code; only its yield interval is shortened.
"""
