"""Defaulting: the values that an object gets for fields that its author left out.

    registry.py                          the defaulting functions of every kind, in order
    schema_defaults.py                   defaults that the schemas themselves declare
    pod.py, workloads.py, custom_resource_definition.py    functions of larger kinds

Functions change the object in place and read nothing else. Defaulting is idempotent: applied twice
it gives the same object.
"""
