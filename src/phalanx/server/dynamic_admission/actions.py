"""Reviews of actions on pods: Bindings and Evictions, which are never stored.

A GroupBinding binds many pods, and a GroupEviction deletes many. Webhooks and policies for
`pods/binding` and for the deletion of pods review each pod of them, as if it were bound or deleted
alone: no scheduler can pass them by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from msgspec.structs import replace

from phalanx.api.kinds import BINDING, POD, Kind
from phalanx.api.wire import Object
from phalanx.server.context import ServerContext
from phalanx.server.dynamic_admission.attributes import (
    AdmissionAttributes,
    ReviewForm,
    delete_options,
    request_options,
)
from phalanx.server.request_info import RequestInfo

#: Pods of one group that are reviewed at the same time.
_MAX_CONCURRENT_REVIEWS = 32


async def review_action(
    context: ServerContext,
    request_info: RequestInfo,
    kind: Kind,
    *,
    subresource: str,
    name: str,
    body: Object,
) -> None:
    """Let hooks change or refuse an object that asks for an action on a pod, such as a Binding."""
    hooks = context.dynamic_admission.find_hooks(POD, subresource, "CREATE")
    if hooks is None:
        return
    attributes = AdmissionAttributes(
        context,
        replace(request_info, kind=POD, name=name),
        "CREATE",
        name,
        body,
        options=request_options(request_info),
        dry_run=request_info.dry_run,
        review_form=ReviewForm(kind, subresource, show=dict, restore=_replace),
    )
    await hooks.mutate(attributes)
    await hooks.validate(attributes)


def _replace(changed: Object, body: Object) -> None:
    body.clear()
    body.update(changed)


async def review_bindings(
    context: ServerContext, request_info: RequestInfo, nodes: Iterable[tuple[str, str]]
) -> None:
    """Let hooks refuse the bindings of a group, pairs of a pod and its node."""

    def review(pod: str, node: str) -> Awaitable[None]:
        meta = {"name": pod, "namespace": request_info.namespace}
        body: Object = {"metadata": meta, "target": {"kind": "Node", "name": node}}
        return review_action(
            context, request_info, BINDING, subresource="binding", name=pod, body=body
        )

    await _review_all(review(pod, node) for pod, node in nodes)


async def review_pod_deletions(
    context: ServerContext, request_info: RequestInfo, pods: Iterable[Object]
) -> None:
    """Let hooks refuse the deletions of pods."""
    hooks = context.dynamic_admission.find_hooks(POD, "", "DELETE")
    if hooks is None:
        return

    async def review(pod: Object) -> None:
        attributes = AdmissionAttributes(
            context,
            replace(request_info, kind=POD, name=pod["metadata"]["name"]),
            "DELETE",
            pod["metadata"]["name"],
            None,
            pod,
            options=delete_options({}),
            dry_run=request_info.dry_run,
        )
        await hooks.mutate(attributes)
        await hooks.validate(attributes)

    await _review_all(review(pod) for pod in pods)


async def _review_all(reviews: Iterable[Awaitable[None]]) -> None:
    places = asyncio.Semaphore(_MAX_CONCURRENT_REVIEWS)

    async def wait(review: Awaitable[None]) -> None:
        async with places:
            await review

    outcomes = await asyncio.gather(*map(wait, reviews), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
