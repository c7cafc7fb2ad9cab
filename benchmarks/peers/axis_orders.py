"""The best of all axis orders on sorted domains: what a user gets by trying every ``order`` the framework could have.

All permutations of the digits of the rank grid (axes; with experts the common refinement of both grids), tp kept
fastest, on every site: hosts in topology order and largest domains first. Deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from benchmarks.peers import NotApplicableError, best_of
from benchmarks.regular_tree import count_ranks, split_ranks
from benchmarks.site import find_sites
from placer.problem import IntArray, Problem


def place(problem: Problem, seed: int, time_limit_s: float) -> IntArray:
    """The cheapest order on the cheapest site."""
    return best_of(problem, _placements(problem), time_limit_s)


def _placements(problem: Problem) -> Iterator[IntArray]:
    digits = split_ranks(problem.mesh)
    if digits is None:
        raise NotApplicableError("the dense and the expert grid have no common refinement")
    keep = 1 if problem.mesh.tp > 1 else 0
    for site in find_sites(problem):
        slots = site.place2slots.ravel()
        for rest in permutations(digits[keep:]):
            rank2slot = np.empty(problem.world_size, dtype=np.int32)
            rank2slot[count_ranks(digits[:keep] + rest)] = slots
            yield rank2slot
