"""A pytest plugin that gives each test its own control plane, in real or virtual time.

    settings   arguments of @pytest.mark.phalanx
    cluster    the control plane of a test and its async methods (apply, wait_for, …)
    blocking   the same methods for tests that are not async
    served     a cluster on a TLS port in a thread, with a kubeconfig: for any client
    virtual    a cluster on an event loop with virtual time: waiting for hours takes no time
    plugin     the fixtures `phalanx` and `phalanx_virtual`, and the invariant check after each test

`docs/testing-controllers.md` is the user's guide. pytest loads `plugin` in every run wherever this
package is installed, so a module is imported only when a test needs it.
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
