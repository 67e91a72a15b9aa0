"""What the endpoints work with, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.api.feature_gates import FeatureGates
from phalanx.api.meta import timestamp
from phalanx.clock import Clock
from phalanx.randomness import Random
from phalanx.server.admission_cache import AdmissionCache
from phalanx.server.discovery import KindRegistry
from phalanx.server.kubelet_reports import ContainerLogs, UsageSamples
from phalanx.server.security.authorization import AccessControl
from phalanx.server.watches import WatchBroadcaster
from phalanx.store.kv import Store
from phalanx.telemetry import StageMeter


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Store, time and chance, the kinds that are served, the fan-out of watches, the meter.

    `access` says who may what, `gates` say what is switched off, `twins` are pods that are created
    alike, `outputs` keep what was written by processes, `measurements` what they use.
    """

    store: Store
    clock: Clock
    random: Random
    registry: KindRegistry
    watch_broadcaster: WatchBroadcaster
    meter: StageMeter
    access: AccessControl
    gates: FeatureGates
    admission_cache: AdmissionCache
    container_logs: ContainerLogs = field(default_factory=ContainerLogs)
    usage_samples: UsageSamples = field(default_factory=UsageSamples)

    def now_timestamp(self) -> str:
        """The present moment as the API writes it."""
        return timestamp(self.clock.now())
