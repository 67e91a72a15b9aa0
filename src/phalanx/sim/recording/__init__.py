"""Recordings: what happened in a live cluster, as a trace that simulations can run.

    recording_format.py   the lines of a recording: which fields are kept, how they are read
    anonymizer.py         replaces names, labels and images by pseudonyms
    recorder.py           watches a cluster and writes lines (`phalanx record`)
    history.py            lines ─▶ jobs, pods, run times and nodes: what a replay needs
    recorded_workload.py  a history as a workload with jobs and nodes, for the commands
    replayed_jobs.py      the jobs and pods of a replay
    status_writes.py      what scheduler and kubelets write, and when it is observed
    replay_engine.py      runs a history through the scheduler in virtual time
    status_writes.py      what is written to pods during a replay, and when it is observed
    replay_check.py       compares a replay with what was recorded

A recording is read like any other trace: `workloads/trace_formats.py` has its row.
"""
