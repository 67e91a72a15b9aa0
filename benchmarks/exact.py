"""Exact placement: a gang of different members on nodes that are nearly full, solved or refuted.

Placing one member after the other does not place such a gang. What is timed is all that follows
until it is placed, or known to fit nowhere: other orders, moves, and the exact solver.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.result import Result
from benchmarks.setting import Setting
from phalanx.api.core import Affinity, Node, Pod, PodAffinity, PodAffinityTerm
from phalanx.controllers.exact import Solver
from phalanx.scheduler.cache import Cache
from phalanx.scheduler.entity import Member
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.rescue import rescue
from phalanx.scheduler.search import Found, Outcome, Proven, Search
from phalanx.scheduler.shape import shape_of

HOST = "kubernetes.io/hostname"
