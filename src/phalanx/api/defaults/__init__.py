"""Defaulting: the values that an object gets for fields that its author left out.

    registry.py                          the defaulting functions of every kind, in order
    pod.py, workloads.py, service.py, storage.py, custom_resource_definition.py
                                         functions of larger kinds
    platform.py                          networking, autoscaling, admission, flow control

Defaults that the schemas themselves declare are filled in by `schema.py`. Functions change the
object in place and read nothing else. Defaulting is idempotent: applied twice it gives the same
object.
"""
