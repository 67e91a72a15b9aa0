"""Gang scheduling for Kubernetes: a control plane, a scheduler for any cluster, a simulator.

Start reading at `docs/reading.md`; the rooms are `api`, `store`, `server`, `client`, `builder`,
`scheduler`, `controllers`, `sim` and `cli`, each described by its own docstring.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
