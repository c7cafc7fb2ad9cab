"""h(n): the least that any n cells of one pipeline stage pay at a domain boundary, all families but the pipeline's.

Hides the case analysis. For a set S of cells the share is

    b(S) = Σ ring groups  E · [S holds some but not all members]  +  Σ pair groups  P · c · (size − c),

c = members in S, and h(n) = min over |S| = n of b(S). Summed over the domains of a tier, shares never exceed the bytes
that cross its boundaries: a ring that touches D > 1 domains crosses at least D times, and Σ c(size − c) = size² − Σ c².

Two facts give nearly all of it:

- **lines across lanes** (`cross_lanes`): T lanes of A cells whose n cells cost λ(n) at least, and a ring across every
  line of T cells. With F full and s split lines every lane holds F … F + s cells, and some set does it for every such
  choice (Gale–Ryser), so h(n) = min s·E + Σ λ(f_l) over F, s, f with Σ f_l = n and s ≤ n − T·F ≤ s·(T − 1).
  Used for tp over (cp, dp), for HSDP replicas over shards, for etp over (ep, edp).
- **rows and columns** (`cost_of_rows`): rows (expert groups) of K cells that cost φ(c), and a ring down every column.
  Row counts between m and M touch at least M columns and fill at most m: at least M − m rings are partial.
  Reached by prefix sets.

Example: tp 8 × dp 4 with tp edges 10 and dp edges 1: 8 cells are one whole tp group and cut 8 dp rings, h(8) = 8;
7 cells leave a lane untouched, h(7) = 10 + 7; 9 cells cost 10 + 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from placer.solver.bound.instance import Stages
from placer.solver.bound.knapsack import convolve, power

FloatArray = npt.NDArray[np.float64]
MAX_ENUMERATED_CELLS = 14
"""Stages up to this size are priced by all their subsets: 2^14 · some 40 groups take 20 ms."""
MAX_LANE_WORK = 4e7
"""Additions spent on numbers of split lines; beyond them more split lines count as one more, with lanes at leisure."""
MAX_ROW_WORK = 3e6
"""Additions spent on rows of any content; beyond them at most one row is priced exactly."""
MAX_RANGE_WORK = 5e8
"""Additions spent on least and largest row counts, about a second; beyond them neighbouring counts are one."""
RANGE_WORK = 5_000
"""Additions in the time that a range of counts takes whatever its size."""


def compute_stage_cost(stages: Stages) -> FloatArray:
    """h(n) for n = 0 … stage_ranks, in exposure × bytes; exact for small stages, else a lower bound."""
    num_cells = stages.mesh.num_stage_ranks
    if not stages.families:
        return np.zeros(num_cells + 1)
    if num_cells <= MAX_ENUMERATED_CELLS:
        return enumerate_stage_cost(stages)
    return bound_stage_cost(stages)


def enumerate_stage_cost(stages: Stages) -> FloatArray:
    """h(n) over all subsets of the cells: exact for any mix of families."""
    num_cells = stages.mesh.num_stage_ranks
    subsets = np.arange(1 << num_cells, dtype=np.int64)
    ones = np.zeros(1, dtype=np.int64)
    for _ in range(num_cells):
        ones = np.concatenate([ones, ones + 1])
    share = np.zeros(len(subsets))
    for family in stages.families.values():
        size = family.groups.shape[1]
        by_count = np.arange(size + 1, dtype=np.float64)
        by_count = by_count * (size - by_count) if family.law == "pair" else ((by_count > 0) & (by_count < size)) * 1.0
        for mask in np.bitwise_or.reduce(1 << family.groups.astype(np.int64), axis=1).tolist():
            share += family.cost * by_count[ones[subsets & mask]]
    cost = np.full(num_cells + 1, np.inf)
    np.minimum.at(cost, ones, share)
    return cost


def bound_stage_cost(stages: Stages) -> FloatArray:
    """h(n) by lanes and rows: a lower bound that is exact for the usual mixes."""
    mesh = stages.mesh
    at = stages.cell_coordinates
    num_lane_cells = mesh.cp * mesh.dp
    tp_ring, etp_ring = stages.cost("tp"), stages.cost("etp")
    has_experts = any(name in stages.families for name in ("ep", "etp", "edp"))
    dense = cross_lanes(_dense_lane(stages, with_cp=True), mesh.tp, tp_ring)
    if not has_experts:
        return _close(dense)
    pair = stages.cost("ep", "pair") * _pairs(mesh.ep)
    expert_lane = cost_of_rows(pair, np.zeros_like(pair), mesh.edp, stages.cost("edp"))
    cost = _close(dense) + _close(cross_lanes(expert_lane, mesh.etp, etp_ring))

    cp_in_rows = _is_cp_in_rows(stages)
    if mesh.etp == mesh.tp and np.array_equal(at["tp"], at["etp"]):
        tp_line = at["dp"].astype(np.int64) * mesh.cp + at["cp"]
        etp_line = at["edp"].astype(np.int64) * mesh.ep + at["ep"]
        if mesh.tp == 1 or _is_inside(tp_line, etp_line):
            extra = _fill_groups(stages, mesh.ep) if cp_in_rows else np.zeros(mesh.ep + 1)
            lane = cost_of_rows(pair, extra, mesh.edp, stages.cost("edp")) + _dense_lane(stages, with_cp=not cp_in_rows)
            cost = np.maximum(cost, _close(cross_lanes(lane, mesh.tp, tp_ring + etp_ring)))
    elif mesh.etp == 1 and _is_tp_in_rows(stages):  # a row pays for its own split tp (and cp) groups
        pair_cost, group_cost = compute_row_cost(stages)
        rows = cost_of_rows(pair_cost, group_cost, mesh.edp, stages.cost("edp"))
        lane = _dense_lane(stages, with_cp=not cp_in_rows)
        cost = np.maximum(cost, _close(rows + power(lane, mesh.tp)))
        partial = lane.copy()
        partial[[0, num_lane_cells]] = np.inf
        all_partial = rows + power(partial, mesh.tp)
        one_whole = expert_lane + cross_lanes(_dense_lane(stages, with_cp=True), mesh.tp, tp_ring, ends_only=True)
        cost = np.maximum(cost, _close(np.minimum(all_partial, one_whole)))
    return cost


def compute_row_cost(stages: Stages) -> tuple[FloatArray, FloatArray]:
    """What 0 … ep cells of one row (an expert group, etp = 1) pay: all-to-all, and the tp and cp groups they split.

    Groups count where they lie inside rows; `compute_rest_cost` has the others.
    """
    mesh = stages.mesh
    pair = stages.cost("ep", "pair") * _pairs(mesh.ep)
    if not _is_tp_in_rows(stages):
        return pair, np.zeros(mesh.ep + 1)
    num_groups = mesh.ep // mesh.tp
    row_lane = _fill_groups(stages, num_groups) if _is_cp_in_rows(stages) else np.zeros(num_groups + 1)
    return pair, cross_lanes(row_lane, mesh.tp, stages.cost("tp"))


def compute_rest_cost(stages: Stages) -> FloatArray:
    """Least cost of n cells in the families that are no expert families and not in `compute_row_cost`, (R + 1,)."""
    if not _is_tp_in_rows(stages):
        return cross_lanes(_dense_lane(stages, with_cp=True), stages.mesh.tp, stages.cost("tp"))
    return power(_dense_lane(stages, with_cp=not _is_cp_in_rows(stages)), stages.mesh.tp)


def _expert_row(stages: Stages) -> npt.NDArray[np.int64]:
    at = stages.cell_coordinates
    return at["edp"].astype(np.int64) * stages.mesh.etp + at["etp"]


def _is_tp_in_rows(stages: Stages) -> bool:
    at = stages.cell_coordinates
    return _is_inside(at["dp"].astype(np.int64) * stages.mesh.cp + at["cp"], _expert_row(stages))


def _is_cp_in_rows(stages: Stages) -> bool:
    at = stages.cell_coordinates
    cp_line = at["dp"].astype(np.int64) * stages.mesh.tp + at["tp"]
    return stages.mesh.cp > 1 and _is_inside(cp_line, _expert_row(stages))


def _is_inside(fine: npt.NDArray[np.int64], coarse: npt.NDArray[np.int64]) -> bool:
    """Whether every block of ``fine`` lies inside one block of ``coarse`` (labels per cell)."""
    block2coarse = np.zeros(int(fine.max()) + 1, dtype=np.int64)
    block2coarse[fine] = coarse
    return bool(np.array_equal(block2coarse[fine], coarse))


def _close(cost: FloatArray) -> FloatArray:
    """A set and its complement pay the same, and nothing or everything pays nothing."""
    closed = np.maximum(cost, cost[::-1])
    closed[[0, -1]] = 0.0
    return closed


def _pairs(size: int) -> FloatArray:
    counts = np.arange(size + 1, dtype=np.float64)
    return counts * (size - counts)


def _fill_groups(stages: Stages, num_cells: int) -> FloatArray:
    """Least cp cost of 0 … ``num_cells`` cells (a multiple of cp) in cp groups: all but one group full or empty."""
    cp = stages.mesh.cp
    rest = np.arange(num_cells + 1) % cp
    return stages.cost("cp") * (rest > 0) + stages.cost("cp", "pair") * rest * (cp - rest)


def _dense_lane(stages: Stages, *, with_cp: bool) -> FloatArray:
    """Least cost of cells with one tp coordinate: dp rings over shards, cp groups in them, rings over replicas."""
    mesh = stages.mesh
    dp = stages.families.get("dp")
    replicas = mesh.dp // mesh.num_shards if dp is None or dp.axes == ("cp", "dp_shard") else 1
    num_cells = mesh.cp * mesh.dp // replicas
    shard = _fill_groups(stages, num_cells) if with_cp else np.zeros(num_cells + 1)
    shard[1:-1] += stages.cost("dp")
    if replicas > 1:
        return cross_lanes(shard, replicas, stages.cost("dp_replicate"))
    if "dp_replicate" in stages.families:  # rings of both kinds over the same lane: each at its own least
        num_replicas = mesh.dp // mesh.num_shards
        flat = np.zeros(num_cells // num_replicas + 1)
        shard = shard + cross_lanes(flat, num_replicas, stages.cost("dp_replicate"))
    return shard


def cross_lanes(lane: FloatArray, num_lanes: int, ring: float, *, ends_only: bool = False) -> FloatArray:
    """Least cost of n cells in ``num_lanes`` lanes with a ring across every line of one cell a lane.

    ``lane`` (A + 1,): least cost of 0 … A cells of one lane. ``ends_only``: only sets that may leave a lane untouched
    or fill one (no full line, or no empty one). Returns shape (num_lanes · A + 1,).
    """
    if num_lanes == 1:
        return lane.copy()
    size = len(lane) - 1
    at_leisure = power(lane, num_lanes)
    if ring == 0:
        return at_leisure
    best = np.full(num_lanes * size + 1, np.inf)
    work = 0.0
    for split in range(size + 1):
        if np.all(split * ring + at_leisure >= best):
            return best
        work += float(num_lanes * num_lanes) * (split + 1) ** 2 * (2 if ends_only else size + 1 - split)
        if work > MAX_LANE_WORK:
            relaxed: FloatArray = np.minimum(best, split * ring + at_leisure)
            return relaxed
        full = np.arange(size - split + 1)
        if ends_only:
            full = np.unique(full[[0, -1]])
        # table[k, x]: least cost of lanes that hold full[k] cells each and x more together
        window = sliding_window_view(lane, split + 1)[full]
        table = window
        for _ in range(num_lanes - 1):
            wider = np.full((len(full), table.shape[1] + split), np.inf)
            for j in range(split + 1):
                part = wider[:, j : j + table.shape[1]]
                np.minimum(part, table + window[:, j : j + 1], out=part)
            table = wider
        for x in range(split, split * (num_lanes - 1) + 1):
            n = num_lanes * full + x
            best[n] = np.minimum(best[n], split * ring + table[:, x])
    return best


def cost_of_rows(pair: FloatArray, extra: FloatArray, num_rows: int, column_ring: float) -> FloatArray:
    """Least cost of n cells in ``num_rows`` rows of K cells with a ring down each of the K columns.

    A row with c cells costs pair[c] + extra[c] (both (K + 1,), 0 at both ends), ``pair`` concave. Exact while that is
    cheap; else rows with an extra cost are counted as none, one, or at least two (and then two pay it).
    Returns shape (num_rows · K + 1,).
    """
    size = len(pair) - 1
    row = pair + extra
    if num_rows == 1:
        return row
    if not extra.any():
        return _rows_at_extremes(pair, num_rows, column_ring)
    if (size + 1.0) ** 2 * (num_rows * size) ** 2 / 4 <= MAX_ROW_WORK:
        return _rows_of_any_content(row, num_rows, column_ring)
    step = next(q for q in range(1, size + 1) if size % q == 0 and not extra[::q].any())
    costly = np.flatnonzero(extra)
    relaxed = _rows_at_extremes(pair, num_rows, column_ring)
    if len(costly) != size - size // step:  # a free row content off the lattice
        return relaxed
    best = relaxed + 2 * float(extra[costly].min())
    lattice = _rows_at_extremes(pair[::step], num_rows, column_ring * step)
    best[::step] = np.minimum(best[::step], lattice)
    for others in _row_ranges(pair[::step], num_rows - 1, column_ring * step, work_per_cell=len(costly)):
        for residue in range(1, step):
            odd = np.arange(residue, size, step)  # what the one row off the lattice may hold
            split = np.maximum(others.least_high * step, odd) - np.minimum(others.most_low * step, odd)
            costs = convolve(others.costs, row[odd] + column_ring * split)
            first = (num_rows - 1) * others.low * step + residue
            target = best[first : first + len(costs) * step : step]
            np.minimum(target, costs, out=target)
    return best


def _rows_of_any_content(row: FloatArray, num_rows: int, column_ring: float) -> FloatArray:
    size = len(row) - 1
    best = np.full(num_rows * size + 1, np.inf)
    for low in range(size + 1):
        for high in range(low, size + 1) if column_ring > 0 else [size]:
            target = best[num_rows * low : num_rows * high + 1]
            np.minimum(target, power(row[low : high + 1], num_rows) + column_ring * (high - low), out=target)
        if column_ring == 0:
            break
    return best


def _rows_at_extremes(row: FloatArray, num_rows: int, column_ring: float) -> FloatArray:
    best = np.full(num_rows * (len(row) - 1) + 1, np.inf)
    for rows in _row_ranges(row, num_rows, column_ring):
        target = best[num_rows * rows.low : num_rows * rows.low + len(rows.costs)]
        np.minimum(target, rows.costs + column_ring * max(0, rows.least_high - rows.most_low), out=target)
    return best


@dataclass(frozen=True)
class _RowRange:
    """Sets whose rows hold ``low`` cells or more, the emptiest at most ``most_low``, the fullest at least
    ``least_high``; ``costs[i]``: what rows · ``low`` + i cells cost at least, without rings."""

    low: int
    most_low: int
    least_high: int
    costs: FloatArray


def _row_ranges(row: FloatArray, num_rows: int, column_ring: float, *, work_per_cell: int = 1) -> Iterator[_RowRange]:
    """Ranges of row counts that together have all sets, ``row`` concave; those that can't beat (0, K) are left out.

    By concavity all rows but one hold the least or the most that there may be. Exact while that is cheap: a range for
    every least and largest count; else for blocks of neighbouring counts. Empty and full rows stay on their own, as
    they are in nearly all cheapest sets.
    """
    size = len(row) - 1

    def price(low: int, high: int) -> FloatArray:
        if low == high:
            return np.array([num_rows * row[low]])
        num_full, rest = np.divmod(np.arange(num_rows * (high - low) + 1), high - low)
        costs: FloatArray = num_full * row[high] + row[low + rest] + (num_rows - 1 - num_full) * row[low]
        return costs

    whole = price(0, size)
    yield _RowRange(0, 0, size, whole)
    if column_ring == 0:
        return
    worst = float(whole.max()) + column_ring * size
    most_ranges = MAX_RANGE_WORK / (RANGE_WORK + work_per_cell * num_rows * size / 3)
    width = max(1, ceil(size / (2 * most_ranges) ** 0.5))
    blocks = [(0, 0), *((first, min(first + width, size) - 1) for first in range(1, size, width)), (size, size)]
    for i, (low, most_low) in enumerate(blocks):
        for least_high, high in blocks[i:]:
            ring = column_ring * max(0, least_high - most_low)
            if num_rows * min(row[low], row[high]) + ring <= worst and (low, high) != (0, size):
                yield _RowRange(low, most_low, least_high, price(low, high))
