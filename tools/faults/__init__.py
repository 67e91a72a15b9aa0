"""The fault programme: a control plane that is not spared anything, drawn from one seed.

    plan ─▶ stage ─▶ server, schedulers behind bad channels ─▶ tail ─▶ auditor   (always)
                                                                  └─▶ rest      (once all is quiet)

Read `ordeal.py` first. What happens is a list of steps that a seed gives; any part of the list can
be run again, which is how a failure is made small. Knows no product code of its own: everything
that is judged runs as it does in earnest.
"""
