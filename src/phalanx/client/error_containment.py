"""Contains unexpected exceptions, so that one object's failure stays one object's failure.

An `ApiError` or `Unreachable` is an expected failure: its caller handles it. Any other exception is
a bug. A test or a simulation must fail on it, so by default it is raised. A component in production
must go on without the object that causes it: there the exception is logged with its traceback,
counted, and what failed is tried again later.

    exception of                 contained as
    a reconcile                  the key is retried with back-off
    a scheduling cycle           the entity is pending with the reason SchedulerError
    an event handler             the event is lost to this handler; the next one is delivered
    decoding one object          the object stays as it was last read
    a task of a component        the task starts again with back-off
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from phalanx.api.errors import Unauthorized
from phalanx.logs import Log
from phalanx.telemetry import Counter, Metrics, MetricSpec

RECONCILE_ERRORS = MetricSpec(
    Counter,
    "phalanx_reconcile_errors_total",
    "Unexpected exceptions that were contained: each is a bug, and its traceback is in the log.",
    labels=("controller",),
)

#: Seconds before a failed task starts again: at first, at most, and after which run from anew.
_MIN_RESTART_DELAY, _MAX_RESTART_DELAY, _HEALTHY_SECONDS = 1.0, 60.0, 120.0


class ErrorContainment:
    """Raises unexpected exceptions (`raise_errors`), or logs and counts them."""

    def __init__(self, metrics: Metrics, *, raise_errors: bool = True) -> None:
        self._metrics, self.raise_errors = metrics, raise_errors

    def contain(
        self, error: Exception, log: Log, message: str, *, controller: str, **fields: object
    ) -> None:
        """Log and count an exception, or raise it. Must be called where it is handled."""
        if self.raise_errors:
            raise error
        self._metrics.series(RECONCILE_ERRORS, controller).add()
        reason = f"{type(error).__name__}: {error}"
        log.error(message, exc_info=True, controller=controller, **fields, reason=reason)

    async def keep_running(
        self, run: Callable[[], Coroutine[Any, Any, None]], log: Log, *, controller: str
    ) -> None:
        """Run a task until it ends or is cancelled; if it raises, start it again with back-off.

        A credential that the server rejects is raised: no retry helps.
        """
        loop, delay = asyncio.get_running_loop(), _MIN_RESTART_DELAY
        while True:
            start = loop.time()
            try:
                return await run()
            except Exception as error:
                group = error if isinstance(error, ExceptionGroup) else ExceptionGroup("", [error])
                if group.subgroup(Unauthorized) is not None:
                    raise
                if loop.time() - start >= _HEALTHY_SECONDS:
                    delay = _MIN_RESTART_DELAY
                message = "task failed, starting again"
                self.contain(error, log, message, controller=controller, backoff=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_RESTART_DELAY)
