"""Recursive multisection: a graph partitioner, applied from the root of the tree of domains down.

Hidden here: target sizes, exact balance before a level is left, and that below an NVLink domain nothing matters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.exact_balance import balance
from benchmarks.site import Site
from benchmarks.traffic_graph import LongArray, TileGraph
from placer.problem import IntArray

Partitioner = Callable[[TileGraph, list[int]], LongArray]
"""(graph, target sizes) → part of every vertex, sizes nearly met."""


def multisect(graph: TileGraph, site: Site, partition: Partitioner) -> IntArray:
    """Map tiles onto places: partition among the outermost domains, then inside each among its own; tile2place (N,)."""
    tile2place = np.empty(site.num_places, dtype=np.int32)

    def divide(part_graph: TileGraph, vertices: LongArray, first: int, tier: int) -> None:
        last = first + len(vertices)
        parts = site.parts(first, last, tier)
        if (tier == 0 and len(parts) == 1) or len(parts) == len(vertices) or len(part_graph.neighbours) == 0:
            tile2place[vertices] = np.arange(first, last)  # all ways cost the same
            return
        if len(parts) == 1:
            divide(part_graph, vertices, first, tier - 1)
            return
        sizes = [end - start for start, end in parts]
        part = balance(part_graph, partition(part_graph, sizes), sizes)
        for p, (start, end) in enumerate(parts):
            inside = np.flatnonzero(part == p)
            if tier == 0:
                tile2place[vertices[inside]] = np.arange(start, end)
            else:
                divide(part_graph.induce(inside), vertices[inside], start, tier - 1)

    divide(graph, np.arange(site.num_places), 0, site.problem.num_tiers - 2)
    return tile2place
