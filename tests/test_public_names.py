"""Public names of version 0.1 of the builder and the client keep working."""

from __future__ import annotations

import importlib

import pytest

NAMES = {
    "phalanx.builder.jobs": ("management", "item", "validate", "workload", "pod_group"),
    "phalanx.builder.jobsets": ("management", "item", "validate", "workload", "groups"),
    "phalanx.builder.leaderworkersets": ("management", "item", "validate", "workload"),
    "phalanx.client.kubeconfig": ("Access", "search", "in_cluster", "read", "connect", "write"),
}


@pytest.mark.parametrize("module", NAMES)
def test_public_names_can_be_imported(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in NAMES[module] if not callable(getattr(found, name, None))] == []
