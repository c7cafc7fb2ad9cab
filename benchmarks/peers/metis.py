"""METIS (Karypis and Kumar; `pymetis` from PyPI, MIT and Apache 2.0): recursive multisection with 16 starts a site.

The exact traffic graph of tp groups is partitioned among pods with their exact target sizes (``tpwgts``), each part
among the pod's leaves, and so on down to NVLink domains; before a level is left the parts are balanced exactly. Every
start has its own seed; odd ones use k-way partitioning, even ones recursive bisection, both with the smallest imbalance
METIS takes. The best of all by the true objective counts.

Limits: each level minimises its own cut, blind to the levels below; METIS knows no ring that could be renumbered and
no free choice of GPUs, which `benchmarks.site` chooses for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pymetis

from benchmarks.multisection import Partitioner, multisect
from benchmarks.peers import best_of
from benchmarks.site import find_sites
from benchmarks.traffic_graph import LongArray, TileGraph, build_graph
from placer.problem import IntArray, Problem

NUM_STARTS = 16


def place(problem: Problem, seed: int, time_limit_s: float) -> IntArray:
    """The best of all starts."""

    def placements() -> Iterator[IntArray]:
        sites = find_sites(problem)
        graph = build_graph(problem, sites[0].tiles)
        for start in range(NUM_STARTS):
            for site in sites:
                yield site.lay(multisect(graph, site, _partitioner(seed * NUM_STARTS + start, start % 2 == 0)))

    return best_of(problem, placements(), time_limit_s)


def _partitioner(seed: int, is_recursive: bool) -> Partitioner:
    def partition(graph: TileGraph, sizes: list[int]) -> LongArray:
        options = pymetis.Options(seed=seed, ufactor=1)
        _, part = pymetis.part_graph(
            len(sizes),
            pymetis.CSRAdjacency(graph.starts.astype(np.int32), graph.neighbours.astype(np.int32)),
            eweights=graph.integer_weights().astype(np.int32),
            tpwgts=[size / sum(sizes) for size in sizes],
            recursive=is_recursive,
            options=options,
        )
        return np.asarray(part, dtype=np.int64)

    return partition
