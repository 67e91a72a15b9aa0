"""Printing: the tables that `kubectl get` shows.

cells.py      builders of cells: fields, ages, lists, labels, selectors, conditions
columns.py    the columns of each kind; pod_columns.py, platform_columns.py, storage_columns.py and
              workload_columns.py have those of pods, of networking and admission, of volumes, and
              of Deployments
"""
