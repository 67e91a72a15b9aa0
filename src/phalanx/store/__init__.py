"""What is remembered: keys, bytes and revisions, behind one protocol (`kv.py`).

Stands below the server and imports nothing of ours. Never knows a Pod.
"""
