"""The dependencies that every request handler shares, as one value."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field

from phalanx.api.feature_gates import FeatureGates
from phalanx.api.meta import timestamp
from phalanx.clock import Clock
from phalanx.randomness import Random
from phalanx.server.admission_cache import AdmissionCache
from phalanx.server.discovery import KindRegistry
from phalanx.server.dynamic_admission.registry import DynamicAdmission
from phalanx.server.kubelet_reports import ContainerLogs, UsageSamples
from phalanx.server.security.authorization import AccessControl
from phalanx.server.security.keyring import CertificateAuthority
from phalanx.server.service_allocator import ServiceRanges
from phalanx.server.watches import WatchBroadcaster
from phalanx.store.kv import Store
from phalanx.telemetry import StageMeter


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The store and everything else that handlers work with.

    `access` authorizes users, `gates` are the feature gates, `admission_cache` keeps admitted pods,
    `dynamic_admission` finds the webhooks and policies that administrators have configured.
    `container_logs` and `usage_samples` keep what the kubelets of process nodes report. With
    `limits_critical_pods`, pods of system priority classes need a quota that selects the class.
    `service_ranges` are the cluster IPs and node ports that Services may have;
    `certificate_authority` signs certificates. With `admits_service_accounts`, new pods get the
    token of their service account. Without `keeps_history`, objects have no managedFields
    and bound pods no events, which nothing in a simulation reads. `compiler` is the thread in which
    large CustomResourceDefinitions are compiled; None: that of the event loop.
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
    dynamic_admission: DynamicAdmission
    container_logs: ContainerLogs = field(default_factory=ContainerLogs)
    usage_samples: UsageSamples = field(default_factory=UsageSamples)
    limits_critical_pods: bool = False
    service_ranges: ServiceRanges = field(default_factory=ServiceRanges)
    certificate_authority: CertificateAuthority | None = None
    admits_service_accounts: bool = False
    keeps_history: bool = True
    compiler: Executor | None = None

    def now_timestamp(self) -> str:
        """The current time in the format of the API."""
        return timestamp(self.clock.now())
