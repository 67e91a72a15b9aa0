"""Defaults of ResourceSlices and DeviceTaintRules: the time at which a taint was added.

Eviction counts the seconds of a toleration from `timeAdded`. A taint that is written again without
it keeps the time that it had.
"""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.api.wire import Object


def set_taint_times(obj: Object, now: str) -> None:
    """Set the time of the taints of a new ResourceSlice or DeviceTaintRule."""
    for _, taint in _taints(obj):
        if not taint.get("timeAdded"):
            taint["timeAdded"] = now


def keep_taint_times(new: Object, old: Object, now: str) -> None:
    """Set the time of the taints of a changed object; taints that it had keep theirs."""
    times = {_identity(device, taint): taint.get("timeAdded") for device, taint in _taints(old)}
    for device, taint in _taints(new):
        if not taint.get("timeAdded"):
            taint["timeAdded"] = times.get(_identity(device, taint)) or now


def _identity(device: str, taint: Object) -> tuple[object, ...]:
    return (device, *(taint.get(field) for field in ("key", "value", "effect")))


def _taints(obj: Object) -> Iterator[tuple[str, Object]]:
    """Yield the taints, each with the name of its device; objects are not validated yet."""
    spec = obj.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    if isinstance(spec.get("taint"), dict):
        yield "", spec["taint"]
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            yield str(device.get("name")), taint
