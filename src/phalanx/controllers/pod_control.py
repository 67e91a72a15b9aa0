"""Creates and deletes the pods of a ReplicaSet, ReplicationController or DaemonSet.

A failed request is a return value: the other requests of the sync are still made, the status shows
the failure, and the controller retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from phalanx import logs
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import POD, Kind
from phalanx.api.meta import ObjectMeta
from phalanx.api.wire import Object
from phalanx.client.transports import Unreachable
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.jobs.pod_operations import OperationFailure, run_concurrently
from phalanx.controllers.reconcile_loop import is_namespace_terminating
from phalanx.controllers.write_tracker import TrackedWriter

LOG = logs.component("controllers")

#: The most pods that one sync creates or deletes; their events cause the next sync.
BURST_REPLICAS = 500


class PodControl:
    """Performs the requests of one sync and records events about its owner."""

    def __init__(
        self,
        writer: TrackedWriter,
        kind: Kind,
        owner: ObjectMeta,
        *,
        record: Callable[[ObjectEvent], None],
    ) -> None:
        self._writer, self._kind, self._owner, self._record = writer, kind, owner, record

    async def create(self, pods: Sequence[Object]) -> list[OperationFailure]:
        """Create pods in batches that double, so that a quota costs few requests.

        Stops after the batch with the first failure. A namespace that is being deleted is no
        failure: nothing can be created in it any more.
        """
        size, done = 1, 0
        while done < len(pods):
            batch = pods[done : done + size]
            _, failures = await run_concurrently(self._create, batch)
            if failures:
                return [one for one in failures if not is_namespace_terminating(one)]
            done, size = done + len(batch), 2 * size
        return []

    async def delete(self, pods: Iterable[Pod]) -> list[OperationFailure]:
        """Delete pods; return the failures."""
        _, failures = await run_concurrently(self._delete, pods)
        return failures

    async def _create(self, pod: Object) -> None:
        try:
            created = await self._writer.create(POD, pod, brief=True)
        except (ApiError, Unreachable) as error:
            if not is_namespace_terminating(error):
                self._event("FailedCreate", f"Error creating: {error}", "Warning")
            raise
        self._event("SuccessfulCreate", f"Created pod: {created['metadata']['name']}")

    async def _delete(self, pod: Pod) -> None:
        try:
            await self._writer.delete(POD, pod.metadata)
        except NotFound:
            return
        except (ApiError, Unreachable) as error:
            self._event("FailedDelete", f"Error deleting: {error}", "Warning")
            raise
        self._event("SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")

    def _event(self, reason: str, message: str, event_type: str = "Normal") -> None:
        LOG.debug(
            "action", action=reason, kind=self._kind.name, key=self._owner.key, detail=message
        )
        self._record(ObjectEvent(self._kind, self._owner, reason, message=message, type=event_type))
