"""Printing: the tables that `kubectl get` shows.

cells.py      builders of cells: fields, ages, lists, labels, selectors
columns.py    the columns of each kind
"""
