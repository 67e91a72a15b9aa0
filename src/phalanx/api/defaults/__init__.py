"""Defaults: what an object gets without saying it. A file per kind; `table.py` has the rows."""
