"""BestFit: a scheduler plugin that fills the nodes with the least CPU and GPU left over.

The score of Weng et al. (ATC 2023): of the nodes that take a pod, the one with the smallest

    0.5 x free CPU / 128 CPUs + 0.5 x free GPUs / 8 GPUs

after the pod is placed. Scores are whole numbers from 0 to 100, too coarse to tell the best node
from the next one, so nodes are scored by their rank: the best one gets 100, the next one 99.
"""

import numpy as np

from phalanx.scheduler.plugins import NormalizedScore, Plugin, PluginArgs


class BestFitArgs(PluginArgs, frozen=True):
    """What is compared, and how much of it the largest node has."""

    cpu_milli: int = 128_000
    gpu_resource: str = "nvidia.com/milli-gpu"
    gpu_milli: int = 8_000


def build_plugin(args: BestFitArgs) -> Plugin:
    """Return the plugin for its arguments."""
    if args.cpu_milli <= 0 or args.gpu_milli <= 0:
        raise ValueError("cpuMilli and gpuMilli must be more than 0")
    weights = {"cpu": 0.5 / args.cpu_milli, args.gpu_resource: 0.5 / args.gpu_milli}

    def score_nodes(context, passed):
        snapshot = context.snapshot
        left_over = np.zeros(len(snapshot))
        for resource, weight in weights.items():
            if (column := snapshot.columns.get(resource)) is not None:
                free = snapshot.allocatable[:, column] - context.requested[:, column]
                left_over += weight * free
        # The pod takes the same from every node, so that what is free before ranks the nodes too.
        rows = np.flatnonzero(passed)
        scores = np.zeros(len(snapshot), np.int64)
        best = rows[np.argsort(left_over[rows], kind="stable")[:100]]
        scores[best] = np.arange(100, 100 - len(best), -1)
        return scores

    return Plugin("BestFit", score=NormalizedScore(lambda context: True, score_nodes))
