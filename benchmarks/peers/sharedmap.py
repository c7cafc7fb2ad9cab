"""SharedMap (Schulz and Woydt, "Shared-Memory Hierarchical Process Mapping", arXiv 2504.01726; `chszlablib` from PyPI).

The exact traffic graph of tp groups onto the regular tree with the tiers' weights as distances, mode ``strong``, one
thread, two seeds at 0 % and at 3 % imbalance; repaired to one tp group a place. The best of 4 by the true objective
counts.

Limits: it needs a regular hierarchy, so that fragmented pools and unequal racks are refused; where only the outermost
domains differ they are cut into equal blocks, as for P².
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from chszlablib import Decomposition, Graph

from benchmarks.exact_balance import fill_places
from benchmarks.peers import NotApplicableError, best_of
from benchmarks.regular_tree import arities
from benchmarks.site import find_sites
from benchmarks.traffic_graph import build_graph
from placer.problem import IntArray, Problem

NUM_SEEDS = 2
IMBALANCES = (0.0, 0.03)
WEIGHT_SUM = 2**22
"""SharedMap sums weight times distance in 32 bits: twice this times 112 still fits."""


def place(problem: Problem, seed: int, time_limit_s: float) -> IntArray:
    """The best of all seeds and imbalances."""
    site = find_sites(problem)[0]
    sizes = arities(site)
    if sizes is None:
        raise NotApplicableError("the pool is no regular tree")
    graph = build_graph(problem, site.tiles)
    levels = [(size, max(1, round(weight))) for size, weight in zip(sizes, problem.weights, strict=True) if size > 1]
    source = Graph.from_csr(graph.starts, graph.neighbours, edge_weights=graph.integer_weights(WEIGHT_SUM))

    def placements() -> Iterator[IntArray]:
        for start in range(NUM_SEEDS):
            for imbalance in IMBALANCES:
                found = Decomposition.process_map(
                    source,
                    hierarchy=[size for size, _ in levels],
                    distance=[distance for _, distance in levels],
                    mode="strong",
                    imbalance=imbalance,
                    seed=seed * NUM_SEEDS + start,
                )
                yield site.lay(fill_places(graph, site, np.asarray(found.assignment, dtype=np.int64)))

    return best_of(problem, placements(), time_limit_s)
