"""Rules of pod templates, wherever they stand, and of PodTemplates, which are nothing else.

What is wrong with a template's labels is told beside its spec, not below its metadata, where
clients of the API expect it.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, forbidden, under
from phalanx.api.rules.checks import Check, every, present, struct
from phalanx.api.rules.meta import check_annotations, check_labels
from phalanx.api.rules.podspec import POD_SPEC


def _metadata(new: Any, old: Any) -> Causes:
    meta = (new or {}).get("metadata") or {}
    return [
        *under("labels", check_labels(meta.get("labels"), old)),
        *under("annotations", check_annotations(meta.get("annotations"), old)),
    ]


def _nothing_ephemeral(new: Any, old: Any) -> Causes:
    if not new.get("ephemeralContainers"):
        return ()
    return [forbidden("ephemeralContainers", "ephemeral containers not allowed in pod template")]


POD_TEMPLATE_SPEC: Check = every(
    _metadata,
    struct(("spec", present(every(POD_SPEC, _nothing_ephemeral)))),
)

POD_TEMPLATE: Check = struct(("template", POD_TEMPLATE_SPEC))
