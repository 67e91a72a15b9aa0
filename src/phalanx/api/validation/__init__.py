"""Rules: what is wrong with an object, as a cause per field.

A file per kind, or part of one; `table.py` has the rows.
"""
