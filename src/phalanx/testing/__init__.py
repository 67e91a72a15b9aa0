"""A real API server in anybody's tests: a private control plane for each, in real or virtual time.

    settings ─▶ cluster ─┬─▶ served   a thread, a port, a kubeconfig: for any client
                         └─▶ virtual  a loop whose time jumps: hours cost nothing
    plugin: the fixtures `phalanx` and `phalanx_virtual`, and the judgement after each test

`docs/testing-controllers.md` is the way in. pytest loads `plugin` in every run wherever this
package is installed, so nothing else is imported before a test asks for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.testing.blocking import Phalanx
    from phalanx.testing.cluster import Cluster
    from phalanx.testing.served import Served, serving
    from phalanx.testing.settings import Settings
    from phalanx.testing.virtual import Virtual, virtually

__all__ = ["Cluster", "Phalanx", "Served", "Settings", "Virtual", "serving", "virtually"]

_EXPORTS = {
    "Cluster": "cluster",
    "Phalanx": "blocking",
    "Served": "served",
    "Settings": "settings",
    "Virtual": "virtual",
    "serving": "served",
    "virtually": "virtual",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
