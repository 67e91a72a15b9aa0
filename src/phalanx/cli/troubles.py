"""What went wrong, as one sentence for whoever typed the command."""

from __future__ import annotations

import click

from phalanx.api.errors import ApiError
from phalanx.client.kubeconfig import KubeconfigError


def plain(group: ExceptionGroup[Exception]) -> Exception:
    """What went wrong as one sentence, where it was not a bug."""
    known = group.subgroup((ApiError, KubeconfigError))
    leaf: Exception | None = known
    while isinstance(leaf, ExceptionGroup):
        leaf = leaf.exceptions[0]
    return click.ClickException(str(leaf)) if leaf else group
