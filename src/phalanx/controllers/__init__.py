"""The loops that act: the scheduler's shell, simulated nodes, PodGroup protection, namespaces.

Each learns what there is from informers, decides with pure functions, and acts through a Client:
the same code inside `phalanx up`, against a real API server, and in virtual time. Never touches
a store.
"""
