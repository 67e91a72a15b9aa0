"""The Job controller: pods are made, counted and replaced until a Job is over.

    controller ─▶ look ─▶ claiming     whose pods are these?
                       ─▶ sync         roll (how they are) ─▶ ending (is it over?)
                                       ─▶ count (who has ended), staffing (whom to make or delete)
                       ─▶ groups       Workload and PodGroup come first: standing (are they as they
                                       were?), arranging, objects
                       ─▶ hands        pods are made, deleted and let go
                       ─▶ writes       what was done, and do the caches show it yet?

All of a sync is a function of the Job, its pods and the time. A pod is counted once and only once:
its uid stands in the status before its finalizer goes, and its number is added when the finalizer
is gone. See `docs/jobs.md` for what users see of it.
"""
