"""Scotch (Pellegrini et al.; `pyscotch` from PyPI, which carries libscotch 7): static mapping, and as a partitioner.

On each site eight static mappings (``SCOTCH_graphMap``) of the exact traffic graph of tp groups onto the machine's own
tree: a ``tleaf`` architecture as wide as the largest domain of every tier, with the tiers' weights as link costs,
restricted to the chosen places by ``sub``. And eight recursive multisections with weighted complete graphs
(``cmpltw``), as METIS gets them. Default strategy; every start has its own seed. The best of all by the true objective
counts.

Limits: a static mapping balances within about 1 % and may put two tp groups on one place; both are repaired. Link costs
are integers of at least 1, so a byte inside an NVLink domain isn't quite free.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pyscotch

from benchmarks.exact_balance import fill_places
from benchmarks.multisection import Partitioner, multisect
from benchmarks.peers import best_of
from benchmarks.site import Site, find_sites
from benchmarks.traffic_graph import LongArray, TileGraph, build_graph
from placer.problem import IntArray, Problem

NUM_STARTS = 16
os.environ.setdefault("SCOTCH_DETERMINISTIC", "1")  # read by libscotch when it starts its threads


def place(problem: Problem, seed: int, time_limit_s: float) -> IntArray:
    """The best of all starts."""

    def placements() -> Iterator[IntArray]:
        sites = find_sites(problem)
        graph = build_graph(problem, sites[0].tiles)
        for start in range(NUM_STARTS):
            for site in sites:
                start_seed = 1 + seed * NUM_STARTS + start
                if start % 2 == 0:
                    yield site.lay(fill_places(graph, site, _map_statically(graph, site, start_seed)))
                else:
                    yield site.lay(multisect(graph, site, _partitioner(start_seed)))

    return best_of(problem, placements(), time_limit_s)


def _map_statically(graph: TileGraph, site: Site, seed: int) -> LongArray:
    """A place for every tile, some perhaps twice."""
    problem = site.problem
    # the place's address in a regular tree: its child number at every tier, outermost first
    address = np.zeros((problem.num_tiers, site.num_places), dtype=np.int64)
    for row, tier in enumerate(range(problem.num_tiers - 1, -1, -1)):
        first, last = 0, site.num_places
        outer = site.parts(first, last, tier) if tier < problem.num_tiers - 1 else [(first, last)]
        for start, end in outer:
            inner = site.parts(start, end, tier - 1) if tier > 0 else [(k, k + 1) for k in range(start, end)]
            for child, (low, high) in enumerate(inner):
                address[row, low:high] = child
    sizes = address.max(axis=1) + 1
    terminals = np.ravel_multi_index(tuple(address), tuple(sizes.tolist()))
    links = np.maximum(1, np.rint(problem.weights[::-1])).astype(np.int64)
    is_real = sizes > 1
    with pyscotch.Architecture() as tree, pyscotch.Architecture() as machine:
        tree.tree_leaf(int(is_real.sum()), sizes[is_real], links[is_real])
        machine.sub(tree, terminals)
        return _run(graph, machine, seed)


def _partitioner(seed: int) -> Partitioner:
    def partition(graph: TileGraph, sizes: list[int]) -> LongArray:
        with pyscotch.Architecture() as parts:
            parts.complete_weighted(len(sizes), np.array(sizes))
            return _run(graph, parts, seed)

    return partition


def _run(graph: TileGraph, machine: pyscotch.Architecture, seed: int) -> LongArray:
    pyscotch.random_seed(seed)
    pyscotch.random_reset()
    with pyscotch.Graph() as source:
        source.build(graph.starts, graph.neighbours, None, graph.integer_weights())
        return np.asarray(source.map(machine), dtype=np.int64)
