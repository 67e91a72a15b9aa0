"""Workloads: the jobs of a trace or generator, in one form for the engine.

    workload.py          TraceJob, TraceWorkload; the lines of a trace and what is wrong with them
    field_errors.py      which field of a trace is invalid, and why, in plain words
    batsim.py            workloads of Batsim
    swf.py               the Standard Workload Format of the Parallel Workloads Archive
    csv_traces.py        CSV traces of GPU clusters: Philly, openb, Kalos
    kueue_generator.py   the generator file of Kueue's performance test
    scheduler_perf.py    the operation lists of Kubernetes' scheduler_perf
    object_template.py   the templates of objects that scheduler_perf names
    trace_formats.py     the table of formats; finds the format of a file

A reader is a pure function from lines to a TraceWorkload. Files are read by the command.
"""
