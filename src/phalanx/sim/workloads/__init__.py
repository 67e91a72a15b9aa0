"""Workloads: the jobs of a trace or generator, in one form for both engines.

    workload.py       TraceJob, Workload; the lines of a trace and what is wrong with them
    swf.py            the Standard Workload Format of the Parallel Workloads Archive
    csv_traces.py     CSV traces of GPU clusters: Philly, openb, Kalos
    trace_formats.py  the table of formats; finds the format of a file

A reader is a pure function from lines to a Workload. Files are read by the command.
"""
