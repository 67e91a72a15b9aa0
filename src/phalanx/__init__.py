"""Gang scheduling for Kubernetes: a control plane, a scheduler for any cluster, a library.

`from phalanx import Cluster` is the library (`docs/library.md`). Start reading the source at
`docs/reading.md`; each package describes itself in its docstring:

    api          kinds, schemas, defaults, validation, conversion
    store        keys, values and revisions, in memory or in SQLite
    server       the API server
    client       API client, informers, leader election
    builder      Workloads and PodGroups from a description
    scheduler    scheduling decisions as pure functions
    library      the scheduler for programs: decide, diagnose, forecast
    controllers  the scheduler loop and all other controllers
    sim          the control plane in virtual time
    cli          the commands
    testing      the pytest plugin

    control_plane, components    a server with its components on one event loop; the components
    clock, randomness            passed in, so that tests and simulations choose them
    logs, telemetry, version     log lines, metrics, the version
    yaml_files                   configuration and scenario files
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from phalanx.version import __version__ as __version__

if TYPE_CHECKING:
    from phalanx.library import Cluster as Cluster

__all__ = ["Cluster", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the library at its first use: it loads numpy, which most commands do not need."""
    if name == "Cluster":
        return import_module("phalanx.library").Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
