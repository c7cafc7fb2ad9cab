"""From a mapping that is nearly balanced to one that fills every place: the repair that all partitioners share.

Partitioners balance within a tolerance, and static mappers may put two tiles on one place. Hidden here: moving as
little as possible, from the root of the tree down, so that every domain gets exactly as many tiles as it has places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.site import Site
from benchmarks.traffic_graph import LongArray, TileGraph
from placer.problem import FloatArray, IntArray


def balance(graph: TileGraph, part: LongArray, sizes: Sequence[int]) -> LongArray:
    """Move vertices so that part p has exactly ``sizes[p]``; −1 in ``part`` means nowhere yet.

    Homeless vertices come first, then those of parts that are too full; each time the move to a part with room that
    adds least to the cut (most bytes to the new part, less those to the old).
    """
    part = part.copy()
    wanted = np.asarray(sizes)
    assert wanted.sum() == graph.num_vertices, "as many places as vertices"
    num_parts = len(wanted)
    held = np.bincount(part[part >= 0], minlength=num_parts)
    if (held == wanted).all():
        return part
    bytes_to = _bytes_to_parts(graph, part, num_parts)
    while True:
        homeless = part < 0
        movable = np.flatnonzero(homeless if homeless.any() else (held > wanted)[part])
        if len(movable) == 0:
            return part
        roomy = np.flatnonzero(held < wanted)
        gain = bytes_to[np.ix_(movable, roomy)]
        if not homeless.any():
            gain = gain - bytes_to[movable, part[movable]][:, None]
        best = int(gain.argmax())
        v, new = int(movable[best // len(roomy)]), int(roomy[best % len(roomy)])
        old = int(part[v])
        part[v] = new
        held[new] += 1
        row = slice(int(graph.starts[v]), int(graph.starts[v + 1]))
        bytes_to[graph.neighbours[row], new] += graph.weights[row]
        if old >= 0:
            held[old] -= 1
            bytes_to[graph.neighbours[row], old] -= graph.weights[row]


def _bytes_to_parts(graph: TileGraph, part: LongArray, num_parts: int) -> FloatArray:
    target = part[graph.neighbours]
    is_placed = target >= 0
    key = graph.sources[is_placed] * num_parts + target[is_placed]
    found = np.bincount(key, weights=graph.weights[is_placed], minlength=graph.num_vertices * num_parts)
    return found.astype(np.float64, copy=False).reshape(graph.num_vertices, num_parts)


def fill_places(graph: TileGraph, site: Site, wanted_place: LongArray) -> IntArray:
    """A bijection of tiles and places near ``wanted_place``, which may name a place twice; tile2place (N,)."""
    tile2place = np.empty(site.num_places, dtype=np.int32)

    def fill(vertices: LongArray, first: int, last: int, tier: int) -> None:
        if tier < 0 or last - first == 1:
            tile2place[vertices] = np.arange(first, last)
            return
        parts = site.parts(first, last, tier)
        if len(parts) == 1:
            fill(vertices, first, last, tier - 1)
            return
        ends = np.array([end for _, end in parts])
        wanted = wanted_place[vertices]
        part = np.searchsorted(ends, wanted, side="right")
        part[(wanted < first) | (wanted >= last)] = -1
        sizes = [end - start for start, end in parts]
        if part.min() < 0 or np.bincount(part, minlength=len(parts)).tolist() != sizes:
            part = balance(graph.induce(vertices), part, sizes)
        for p, (start, end) in enumerate(parts):
            fill(vertices[part == p], start, end, tier - 1)

    fill(np.arange(site.num_places), 0, site.num_places, site.problem.num_tiers - 2)
    return tile2place
