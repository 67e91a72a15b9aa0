"""The Job controller: pods are made, counted and replaced until a Job is over.

    controller ─▶ roll (which pods there are) ─▶ count (who has ended) ─▶ ending (is it over?)
               ─▶ staffing (whom to make, whom to delete) ─▶ sync (the plan) ─▶ controller performs

Everything between the two ends is a function of the Job, its pods and the time. A pod is counted
once and only once: its uid stands in the status before its finalizer goes, and its number is added
when the finalizer is gone.
"""
