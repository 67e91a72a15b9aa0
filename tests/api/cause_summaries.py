"""Short forms of causes for test tables: `spec.hostname: Invalid`."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.api.errors import Cause

CauseSummaries = list[str]


def summarize(causes: Iterable[Cause]) -> CauseSummaries:
    """Return field and reason of each cause."""
    return [f"{cause.field}: {cause.reason.removeprefix('FieldValue')}" for cause in causes]


def prefix_summaries(parent: str, summaries: CauseSummaries) -> CauseSummaries:
    """Return the summaries with their fields below a parent's path."""
    return [
        f"{parent}{one}" if one.startswith(("[", ":")) else f"{parent}.{one}" for one in summaries
    ]
