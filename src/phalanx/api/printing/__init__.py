"""Printing: the tables that `kubectl get` shows.

cells.py      builders of cells: fields, ages, lists, labels, selectors
columns.py    the columns of each kind; platform_columns.py, storage_columns.py and
              workload_columns.py have those of networking and admission, volumes, and Deployments
"""
