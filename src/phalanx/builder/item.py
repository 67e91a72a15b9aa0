"""A workload as its controller sees it: a tree of items, each with a default and a user's wish.

The controller knows the structure and what is sensible, the user says what is wanted; `resolve`
brings both together. An item with children is a group of groups, one without is a group of pods.
Items are values: resolving them changes nothing, and the same tree always gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from phalanx.api.causes import under
from phalanx.api.errors import Cause
from phalanx.builder.config import SILENT, Basic, Gang, SchedulingConfig

#: The last word of a controller: given what defaults and user say together, what shall be.
Callback = Callable[[SchedulingConfig], SchedulingConfig]


@dataclass(frozen=True, slots=True)
class WorkloadItem:
    """One part of a workload: all of a JobSet, a role in it, or a Job that stands alone.

    `name` becomes that of its template: a DNS label, its own in the whole tree. `path` is where the
    user's object speaks of it (`spec.scheduling`); `fields` tells where single fields of a template
    stand that are elsewhere or have another name (`{"schedulingPolicy": "spec.gang"}`).

    >>> item = WorkloadItem("workers", user=SchedulingConfig(policy=Gang()),
    ...                     callbacks=[default_min_count(4)])
    >>> item.resolve().policy
    Gang(min_count=4)
    """

    name: str
    default: SchedulingConfig = SILENT
    user: SchedulingConfig = SILENT
    callbacks: Sequence[Callback] = ()
    children: Sequence[WorkloadItem] = ()
    path: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_composite(self) -> bool:
        """Whether it groups groups."""
        return bool(self.children)

    def resolve(self) -> SchedulingConfig:
        """The user's word over the default, the callbacks' over both. Always has a policy."""
        config = self.default.overridden_by(self.user)
        if config.policy is None:
            config = replace(config, policy=Basic())
        for callback in self.callbacks:
            config = callback(config)
        return config

    def told(self, cause: Cause) -> Cause:
        """A cause about a field of this item's template, told where the user wrote that field."""
        for known in sorted(self.fields, key=len, reverse=True):
            rest = cause.field.removeprefix(known)
            if cause.field == known or (rest != cause.field and rest[0] in ".["):
                return replace(cause, field=self.fields[known] + rest)
        return under(self.path, [cause])[0]


def default_min_count(count: int) -> Callback:
    """The size of a gang whose user leaves it open; at least one."""

    def fill(config: SchedulingConfig) -> SchedulingConfig:
        if config.policy != Gang():
            return config
        return replace(config, policy=Gang(max(count, 1)))

    return fill
