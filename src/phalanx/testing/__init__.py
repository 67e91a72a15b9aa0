"""A pytest plugin that gives each test its own control plane, in real or virtual time.

    cluster         the control plane of a test: its settings and its async methods
    blocking        the same methods for tests that are not async: on a TLS port in a thread, or on
                    an event loop with virtual time, where waiting for hours takes no time
    failure_report  what a wait that has timed out prints: why, pods and events
    plugin          the fixtures `phalanx` and `phalanx_virtual`, and what happens after each test

`docs/testing-controllers.md` is the user's guide. pytest loads `plugin` in every run wherever this
package is installed, so a module is imported only when a test needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.testing.blocking import (
        Phalanx,
        ProgramFailed,
        Served,
        Virtual,
        control_plane,
        serving,
        virtually,
    )
    from phalanx.testing.cluster import Cluster, Settings

__all__ = [
    "Cluster",
    "Phalanx",
    "ProgramFailed",
    "Served",
    "Settings",
    "Virtual",
    "control_plane",
    "serving",
    "virtually",
]

_EXPORTS = {
    "Cluster": "cluster",
    "Phalanx": "blocking",
    "ProgramFailed": "blocking",
    "Served": "blocking",
    "Settings": "cluster",
    "Virtual": "blocking",
    "control_plane": "blocking",
    "serving": "blocking",
    "virtually": "blocking",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
