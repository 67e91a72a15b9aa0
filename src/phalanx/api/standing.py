"""What a PodGroup says of itself once enough of its members have a node, whoever writes it.

The server does so in the transaction of a GroupBinding, the scheduler's reporter everywhere else.
"""

from __future__ import annotations

from phalanx.api.meta import Condition
from phalanx.api.scheduling import INITIALLY_SCHEDULED, SCHEDULED


def placed_conditions(needed: int) -> tuple[Condition, Condition]:
    """The same news under the two names that a group's condition goes by."""
    text = f"All required pods ({needed}/{needed}) have been assigned to nodes"
    return (
        Condition(INITIALLY_SCHEDULED, "True", "Scheduled"),
        Condition(SCHEDULED, "True", "MinCountSatisfied", text),
    )
