"""What a controller supports: whatever it does not list is denied.

The building blocks are shared by all controllers and will grow; a policy or mode that is added to
them stays closed to a controller until that lists it. These functions are for the validation of an
API that embeds the blocks; `WorkloadBuilder` asks them too, about what defaults and user say
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.causes import forbidden
from phalanx.api.errors import Cause
from phalanx.builder.config import Option


def validate_scheduling_policy(
    block: Mapping[str, Any] | None, path: str, *allowed: Option
) -> list[Cause]:
    """What a controller that supports these policies does not support of a block.

    >>> from phalanx.builder.config import Basic
    >>> [str(cause) for cause in validate_scheduling_policy({"gang": {}}, "spec.policy", Basic)]
    ['spec.policy: Forbidden: gang scheduling policy is not supported by this controller']
    """
    detail = "{} scheduling policy is not supported by this controller"
    return _denied(block, path, allowed, detail)


def validate_disruption_mode(
    block: Mapping[str, Any] | None, path: str, *allowed: Option
) -> list[Cause]:
    """What a controller that supports these modes does not support of a block."""
    return _denied(
        block, path, allowed, "the disruptionMode `{}` is not supported by this controller"
    )


def _denied(
    block: Mapping[str, Any] | None, path: str, allowed: tuple[Option, ...], detail: str
) -> list[Cause]:
    known = [option.member for option in allowed]
    return [forbidden(path, detail.format(name)) for name in block or () if name not in known]
