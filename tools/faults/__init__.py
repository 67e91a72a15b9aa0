"""Fault injection: a control plane under random faults, generated from one seed.

    plan ─▶ environment ─▶ server, schedulers behind faulty channels ─▶ model ─▶ auditor   (always)
                                                                           └─▶ steady_state (at
                                                                           rest)

Read `fault_run.py` first. A seed generates a list of steps; any part of the list can be run again,
which is how a failure is shrunk. Everything that is checked is product code, unchanged.
"""
