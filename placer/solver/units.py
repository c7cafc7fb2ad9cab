"""Units: sets of ranks that move as one, and the positions they can take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placer.problem import IntArray, Problem
from placer.solver.counts import tile_order


@dataclass(frozen=True)
class Layout:
    """Units on positions. U units of equal size n, P positions of n slots, every slot of a position in one domain.

    - ``unit2ranks`` (U, n), ``position2slots`` (P, n)
    - ``unit2position`` (U,); ``is_fixed`` (U,): units that hold a pinned rank
    - ``position2domain`` (P, T − 1): domain at every tier but the root
    - ``sequence`` (U,): units by stage and column; ``block``: units of an all-to-all group that stand together in it,
      or 1
    """

    unit2ranks: IntArray
    position2slots: IntArray
    unit2position: IntArray
    is_fixed: npt.NDArray[np.bool_]
    position2domain: IntArray
    sequence: IntArray
    block: int

    def rank2slot(self, unit2position: IntArray) -> IntArray:
        """The placement that puts every unit on its position, ranks on slots in order."""
        placed = np.empty(self.unit2ranks.size, dtype=np.int32)
        placed[self.unit2ranks.ravel()] = self.position2slots[unit2position].ravel()
        return placed


def build_layout(
    problem: Problem, rank2slot: IntArray, offered: Sequence[IntArray], *, unit_size: int, spans_hosts: bool = False
) -> Layout | None:
    """Units of ``unit_size`` ranks as a placement groups them, and all positions that the offered slots make.

    A position is ``unit_size`` slots of one host and tier-0 domain, or with ``spans_hosts`` of one tier-0 domain, whole
    hosts first. Ranks of one tp group stay in one unit where they can. None when the placement doesn't split that way.
    """
    rank_on = np.full(problem.num_slots, -1, dtype=np.int64)
    rank_on[rank2slot] = np.arange(problem.world_size)
    slots = np.concatenate(list(offered))
    if np.count_nonzero(rank_on[slots] >= 0) != problem.world_size:
        return None
    tiles = np.append(tile_order(problem), problem.world_size)  # free slots (rank −1) come last
    host, domain = problem.slot2host[slots], problem.slot2domain[0][slots].astype(np.int64)
    block = domain if spans_hosts else domain * len(offered) + host
    minor = (slots, tiles[rank_on[slots]], host) if spans_hosts else (slots, tiles[rank_on[slots]])
    slots = slots[np.lexsort((*minor, block))]
    block = np.sort(block)
    starts = np.flatnonzero(np.diff(block, prepend=-1))
    counts = np.diff(starts, append=len(slots))
    offset = np.arange(len(slots)) - np.repeat(starts, counts)
    positions = slots[offset < np.repeat(counts // unit_size * unit_size, counts)].reshape(-1, unit_size)
    ranks = rank_on[positions]
    is_used = (ranks >= 0).all(axis=1)
    if np.count_nonzero(is_used) * unit_size != problem.world_size:
        return None
    unit2ranks = ranks[is_used].astype(np.int32)
    pinned = [rank for rank, _ in problem.constraints.pins]
    return Layout(
        unit2ranks,
        positions.astype(np.int32),
        np.flatnonzero(is_used).astype(np.int32),
        np.asarray(np.isin(unit2ranks, pinned).any(axis=1)),
        np.ascontiguousarray(problem.slot2domain[:-1, positions[:, 0]].T),
        np.lexsort((tiles[unit2ranks[:, 0]], problem.mesh.coordinates["pp"][unit2ranks[:, 0]])).astype(np.int32),
        _block_size(problem, unit_size),
    )


def _block_size(problem: Problem, unit_size: int) -> int:
    size = problem.mesh.ep * problem.mesh.etp
    return size // unit_size if problem.mesh.ep > 1 and size % unit_size == 0 else 1
