"""The version of the package; `pyproject.toml` has the same.

A module of its own, so that other modules can read the version without importing `phalanx`, which
exports the library on top of the scheduler.
"""

__version__ = "0.1.0"
