"""Defaulting: the values that an object gets for fields that its author left out.

    registry.py                          the defaulting functions of every kind, in order
    schema_defaults.py                   defaults that the schemas themselves declare
    pod.py, workloads.py, custom_resource_definition.py    functions of larger kinds

Pure and idempotent: defaulting an object twice gives the same object.
"""
