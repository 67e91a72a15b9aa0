"""ImageLocality: prefers nodes that already have the images of a pod."""

from __future__ import annotations

import numpy as np

from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.plugins.plugin import Plugin, StaticScore

_MEBIBYTE = 1024 * 1024
#: The score is 0 up to the first size and 100 from the second size per image on.
_MIN_IMAGE_BYTES, _MAX_IMAGE_BYTES = 23 * _MEBIBYTE, 1000 * _MEBIBYTE


def score_image_locality(snapshot: Snapshot, shape: PodShape) -> IntArray | None:
    """Score nodes by the bytes of a pod's images on them; an image that few nodes have counts less.

    None if no node has any of the images.
    """
    images = shape.node_constraints.images
    found = [sizes for sizes in map(snapshot.image_sizes, images) if sizes.any()]
    if not found:
        return None
    total = np.zeros(len(snapshot), np.int64)
    for sizes in found:
        share = np.count_nonzero(sizes) / len(snapshot)
        total += np.asarray(sizes * share, np.int64)
    most = _MAX_IMAGE_BYTES * len(images)
    clamped = np.clip(total, _MIN_IMAGE_BYTES, most)
    return np.asarray(100 * (clamped - _MIN_IMAGE_BYTES) // (most - _MIN_IMAGE_BYTES), np.int64)


IMAGE_LOCALITY = Plugin("ImageLocality", score=StaticScore(score_image_locality), breaks_ties=True)
