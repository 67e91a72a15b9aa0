"""The store: keys, bytes and revisions, with compare-and-swap, history and watches.

    kv.py               the protocol, its values and its errors
    memory.py           the versioned map that serves all reads, and the store in memory
    sqlite.py           the durable store: one writer thread, group commit, retention
    revision_log.py     reading and writing the tables of the database file
    database_file.py    the file's format, its directory and its lock
    backup.py           consistent copies of a running store

Imports nothing of ours but `clock`, and never knows a Pod.
"""
