"""Units: sets of ranks that move as one, the positions they can take, and the graph of what they exchange.

On units the objective is a plain sum over pairs: a ring costs its edges in rank order, an all-to-all its pairs, a
chain its edges, each at the weight of the smallest common domain. This is the evaluator's J, except that a ring which
returns to a tier-0 domain is charged for it; so the sum is never below J and equals it when rings are contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placer.problem import FloatArray, IntArray, Problem
from placer.solver.counts import tile_order

TOGETHER_PENALTY = 1e3  # times the largest weight: a broken `together` outweighs any gain on the same edge


@dataclass(frozen=True)
class UnitGraph:
    """Pairwise traffic of units in compressed rows, each edge in both directions.

    ``neighbours[starts[u]:starts[u + 1]]`` with exposed bytes ``traffic`` and ``profile``, a row of ``cost`` (K, T):
    what a byte costs when the smallest common domain is of tier t.
    """

    starts: npt.NDArray[np.int64]
    neighbours: IntArray
    traffic: FloatArray
    profile: npt.NDArray[np.int8]
    cost: FloatArray


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


def build_graph(problem: Problem, unit2ranks: IntArray) -> UnitGraph:
    """Contract the groups of a problem to units. Memory: one entry per pair of units that exchange bytes."""
    num_units, size = unit2ranks.shape
    rank2unit = np.empty(problem.world_size, dtype=np.int64)
    rank2unit[unit2ranks.ravel()] = np.repeat(np.arange(num_units), size)
    costs: list[FloatArray] = [problem.weights]
    together = dict(problem.constraints.together)
    keys: list[npt.NDArray[np.int64]] = []
    values: list[FloatArray] = []

    def add(profile: int, a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], value: float) -> None:
        low, high = np.minimum(a, b).ravel(), np.maximum(a, b).ravel()
        apart = low != high
        key, counts = np.unique((profile * num_units + low[apart]) * num_units + high[apart], return_counts=True)
        keys.append(key)
        values.append(counts.astype(np.float64) * value)

    for family in problem.families:
        members = rank2unit[family.groups]
        n = members.shape[1]
        value = family.exposure * family.unit_bytes
        profile = 0
        if family.name in together:
            tier = together[family.name]
            is_broken = np.arange(problem.num_tiers) > tier
            costs.append(problem.weights + TOGETHER_PENALTY * float(problem.weights.max()) * is_broken)
            profile = len(costs) - 1
            value = value or 1.0
        if n < 2 or value + family.wrap_bytes <= 0:
            continue
        if family.law == "pair":
            first, second = np.triu_indices(n, 1)
            add(profile, members[:, first], members[:, second], 2 * value)
        else:
            add(profile, members[:, :-1], members[:, 1:], value)
            wrap = value if family.law == "ring" else family.exposure * family.wrap_bytes
            if wrap > 0:
                add(profile, members[:, -1], members[:, 0], wrap)
    if not keys:
        keys, values = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    key, where = np.unique(np.concatenate(keys), return_inverse=True)
    traffic = np.bincount(where, weights=np.concatenate(values), minlength=len(key))
    high, rest = key % num_units, key // num_units
    low, profiles = rest % num_units, rest // num_units
    source, target = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.argsort(source, kind="stable")
    starts = np.zeros(num_units + 1, dtype=np.int64)
    np.cumsum(np.bincount(source, minlength=num_units), out=starts[1:])
    return UnitGraph(
        starts,
        target[order].astype(np.int32),
        np.concatenate([traffic, traffic])[order],
        np.concatenate([profiles, profiles])[order].astype(np.int8),
        np.array(costs),
    )


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
