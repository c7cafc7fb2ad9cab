"""The traffic of a job as a graph of tiles, as graph partitioners and process mappers want it.

Hidden here: what each law becomes. A ring becomes the cycle of its communicator's ranks; an all-to-all the clique of
its members, none left out; a pipeline a path, with its wrap edge. The weight of an edge is its exposed bytes in both
directions. Ranks of one tile are contracted, so their edges vanish and parallel edges add up: an expert group of 64
with tp 4 is a clique of 16 tiles whose edges carry 4 · 4 · 2 pairs each.

The cut of a tier's domains is what crosses it, except that the graph overstates rings that come back into an NVLink
domain (NCCL visits each once). The judge is always `placer.problem.evaluate`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placer.problem import Family, FloatArray, IntArray, Problem

LongArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TileGraph:
    """An undirected graph in compressed rows, each edge in both of its rows.

    Neighbours of vertex v: ``neighbours[starts[v]:starts[v + 1]]``, with ``weights`` alike; bytes.
    """

    starts: LongArray
    neighbours: LongArray
    weights: FloatArray

    @property
    def num_vertices(self) -> int:
        """Number of vertices."""
        return len(self.starts) - 1

    @property
    def sources(self) -> LongArray:
        """The vertex in whose row every entry stands."""
        return np.repeat(np.arange(self.num_vertices), np.diff(self.starts))

    def integer_weights(self, total: int = 2**28) -> LongArray:
        """Weights as integers of at least 1 whose sum is about ``total``, which fits the 32-bit partitioners."""
        scale = total / max(1.0, float(self.weights.sum()))
        return np.maximum(1, np.rint(self.weights * scale)).astype(np.int64)

    def induce(self, vertices: LongArray) -> TileGraph:
        """The graph of some vertices, numbered in the order given."""
        new = np.full(self.num_vertices, -1, dtype=np.int64)
        new[vertices] = np.arange(len(vertices))
        counts = np.diff(self.starts)[vertices]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        entries = np.repeat(self.starts[vertices], counts) + offsets
        target = new[self.neighbours[entries]]
        source = np.repeat(np.arange(len(vertices)), counts)
        is_inside = target >= 0
        starts = np.concatenate([[0], np.cumsum(np.bincount(source[is_inside], minlength=len(vertices)))])
        return TileGraph(starts, target[is_inside], self.weights[entries][is_inside])


def build_graph(problem: Problem, tiles: IntArray) -> TileGraph:
    """The graph of tiles, ``tiles`` (N, unit) being the ranks of each."""
    num_tiles = len(tiles)
    rank2tile = np.empty(problem.world_size, dtype=np.int64)
    rank2tile[tiles] = np.arange(num_tiles)[:, None]
    keys, weights = [], []
    for family in problem.families:
        if family.exposure > 0:
            for one, other, edge_bytes in _edges(family):
                a, b = rank2tile[one.ravel()], rank2tile[other.ravel()]
                is_cut = a != b
                low, high = np.minimum(a, b)[is_cut], np.maximum(a, b)[is_cut]
                unique, counts = np.unique(low * num_tiles + high, return_counts=True)
                keys.append(unique)
                weights.append(counts * (family.exposure * edge_bytes))
    key = np.concatenate(keys) if keys else np.zeros(0, dtype=np.int64)
    edges, index = np.unique(key, return_inverse=True)
    weight = np.bincount(index, weights=np.concatenate(weights) if weights else None, minlength=len(edges))
    low, high = edges // num_tiles, edges % num_tiles
    source, target = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.lexsort([target, source])
    starts = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=num_tiles))])
    return TileGraph(starts, target[order], np.concatenate([weight, weight])[order])


def _edges(family: Family) -> list[tuple[IntArray, IntArray, float]]:
    """Edges of all groups: (one end, other end, bytes of an edge in both directions)."""
    groups, unit = family.groups, family.unit_bytes
    size = groups.shape[1]
    if size < 2:
        return []
    if family.law == "ring":
        return [(groups, np.roll(groups, -1, axis=1), unit)]
    if family.law == "chain":
        inner = (groups[:, :-1], groups[:, 1:], unit)
        return [inner, (groups[:, -1], groups[:, 0], family.wrap_bytes)] if family.wrap_bytes else [inner]
    one, other = np.triu_indices(size, 1)
    return [(groups[:, one], groups[:, other], 2 * unit)]
