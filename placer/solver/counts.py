"""Counts of ranks per domain and pipeline stage, and the placements that have them.

Counts leave open which rank of a stage sits where. `realise` lays every stage's ranks along the domains in one common
order of the tree, in one run or expert group by expert group: rings stay contiguous in every domain, few all-to-all
groups are cut, and the columns of neighbouring stages overlap, so that most chains stay inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placer.problem import IntArray, Problem
from placer.solver.pool import aligned_slots

Row = list[tuple[int, int]]
"""One expert group as its parts: (domain, ranks)."""


@dataclass(frozen=True)
class Counts:
    """``held`` (domains of ``tier``, stages): ranks, in blocks of ``unit``. ``rows``: every stage's expert groups."""

    held: IntArray
    tier: int
    unit: int
    rows: list[list[Row]] | None = None


def count_ranks(problem: Problem, rank2slot: IntArray, tier: int) -> IntArray:
    """Ranks of every stage that a placement puts into every domain of a tier, shape (domains, stages)."""
    held = np.zeros((problem.num_domains[tier], problem.mesh.pp), dtype=np.int32)
    np.add.at(held, (problem.slot2domain[tier][rank2slot], problem.mesh.coordinates["pp"]), 1)
    return held


def whole_blocks(problem: Problem, slots: IntArray, unit: int) -> IntArray:
    """The slots cut to whole blocks of ``unit`` in every tier-0 domain, or all of them if too few would remain."""
    blocks = aligned_slots(problem, slots, (unit,))
    return blocks if len(blocks) >= problem.world_size else slots


def realise(problem: Problem, slots: IntArray, counts: Counts) -> Iterator[IntArray]:
    """Placements with the given counts, for several orders of the domains: by the stages that they hold, and as given.

    ``slots``: the slots to use, every domain's together.
    """
    stage_ranks = problem.mesh.groups("pp").T  # (stages, ranks of a stage), chains in columns
    stage_ranks = stage_ranks[:, np.argsort(tile_order(problem)[stage_ranks[0]])]
    slots = whole_blocks(problem, slots, counts.unit)
    domain = problem.slot2domain[counts.tier][slots]
    outer = np.zeros(len(counts.held), dtype=np.int64)
    outer[domain] = problem.slot2domain[counts.tier + 1][slots]
    given = np.full(len(counts.held), len(slots))
    np.minimum.at(given, domain, np.arange(len(slots)))
    outer_given = np.full(int(outer.max()) + 1, len(slots))
    np.minimum.at(outer_given, outer, given)
    stages = _centroid(counts.held)
    outer_held = np.zeros((len(outer_given), counts.held.shape[1]), dtype=np.int64)
    np.add.at(outer_held, outer, counts.held)
    outer_stages = _centroid(outer_held)
    by_stage = np.lexsort((given, stages, outer_given[outer], outer_stages[outer]))
    layout = _Layout(problem, slots, domain, outer, stage_ranks)
    for order in (by_stage, np.lexsort((stages, outer_given[outer])), np.argsort(given)):
        yield layout.place(_runs(counts.held, order))
        yield layout.place(_columns_along_chains(counts.held, order, outer, layout.group_size))
        if layout.row_size:
            rows = counts.rows or _pack_rows(counts.held, order, outer, layout.row_size)
            yield layout.place(_row_columns(rows, order))


def tile_order(problem: Problem) -> npt.NDArray[np.int64]:
    """Position of every rank when the ranks of a tp group stand together, shape (W,)."""
    order = np.empty(problem.world_size, dtype=np.int64)
    order[problem.mesh.groups("tp").ravel()] = np.arange(problem.world_size)
    return order


def _centroid(held: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    return np.asarray((held * np.arange(held.shape[1])).sum(axis=1) / np.maximum(held.sum(axis=1), 1), dtype=np.float64)


Columns = list[dict[int, list[IntArray]]]
"""For every stage, which columns (positions in the stage) every domain holds, as arrays to be joined."""


class _Layout:
    """Turns columns per domain and stage into placements; knows the slots of every domain."""

    def __init__(
        self, problem: Problem, slots: IntArray, domain: IntArray, outer: npt.NDArray[np.int64], stage_ranks: IntArray
    ) -> None:
        self._world_size = problem.world_size
        self._stage_ranks = stage_ranks
        by_domain = np.argsort(domain, kind="stable")
        self._slots = slots[by_domain]
        self._starts = np.searchsorted(domain[by_domain], np.arange(len(outer) + 1))
        self.row_size = _row_size(problem, stage_ranks[0])
        self.group_size = problem.mesh.tp * problem.mesh.cp

    def place(self, columns: Columns) -> IntArray:
        rank2slot = np.full(self._world_size, -1, dtype=np.int32)
        used = self._starts.copy()
        for stage, held in enumerate(columns):
            for d, parts in held.items():
                ranks = self._stage_ranks[stage, np.concatenate(parts)]
                rank2slot[ranks] = self._slots[used[d] : used[d] + len(ranks)]
                used[d] += len(ranks)
        assert rank2slot.min() >= 0
        assert (used[:-1] <= self._starts[1:]).all()
        return rank2slot


def _row_size(problem: Problem, stage_ranks: IntArray) -> int:
    """Columns of one expert group (with its etp ranks) when they stand together in column order, else 0."""
    size = problem.mesh.ep * problem.mesh.etp
    if problem.mesh.ep == 1 or not any(family.law == "pair" for family in problem.families):
        return 0
    column = np.full(problem.world_size, -1, dtype=np.int64)
    column[stage_ranks] = np.arange(len(stage_ranks))
    rows = column[problem.mesh.groups("ep")] // size
    rows = rows[column[problem.mesh.groups("ep")[:, 0]] >= 0]
    return size if (rows == rows[:, :1]).all() else 0


def _runs(held: IntArray, order: npt.NDArray[np.int64]) -> Columns:
    """Every stage's columns in one run after another, domains in the given order."""
    columns: Columns = []
    for counts in held.T:
        ends = np.cumsum(counts[order])
        columns.append(
            {
                d: [np.arange(end - n, end, dtype=np.int32)]
                for d, n, end in zip(order.tolist(), counts[order].tolist(), ends.tolist(), strict=True)
                if n
            }
        )
    return columns


def _pack_rows(
    held: IntArray, order: npt.NDArray[np.int64], outer: npt.NDArray[np.int64], row_size: int
) -> list[list[Row]]:
    """Whole expert groups inside domains where the counts allow it, the rests joined to as few split groups as can be.

    Rests are joined inside one outer domain first. Example with rows of 8: rests 5, 3, 4 and 4 make two split rows.
    """
    found: list[list[Row]] = []
    for counts in held.T:
        rows: list[Row] = []
        rests: dict[int, list[tuple[int, int]]] = {}
        for d in order.tolist():
            whole, rest = divmod(int(counts[d]), row_size)
            rows += [[(d, row_size)]] * whole
            if rest:
                rests.setdefault(int(outer[d]), []).append((rest, d))
        left: list[tuple[int, int]] = []
        for fragments in rests.values():
            left += _join(fragments, row_size, rows)
        _join(left, row_size, rows)
        found.append(rows)
    return found


def _row_columns(rows: list[list[Row]], order: npt.NDArray[np.int64]) -> Columns:
    """Every stage's expert groups one after another, in the order of the domains that hold their largest parts."""
    place = {d: k for k, d in enumerate(order.tolist())}
    columns: Columns = []
    for of_stage in rows:
        found: dict[int, list[IntArray]] = {}
        column = 0
        for row in sorted(of_stage, key=lambda row: place[max(row, key=lambda part: part[1])[0]]):
            for d, n in row:
                found.setdefault(d, []).append(np.arange(column, column + n, dtype=np.int32))
                column += n
        columns.append(found)
    return columns


def _columns_along_chains(
    held: IntArray, order: npt.NDArray[np.int64], outer: npt.NDArray[np.int64], group_size: int
) -> Columns:
    """From stage to stage every domain keeps the columns that it has, and fills up with whole groups of columns.

    Released columns go to domains of the same outer domain first, so that chains stay near where they can't stay.
    Example: counts (4, 0), (2, 2) of 4 columns: the second stage's columns 0 and 1 stay in the first domain.
    """
    num_columns = int(held[:, 0].sum())
    owner = np.repeat(order, held[order, 0])
    group = np.arange(num_columns) // group_size
    columns: Columns = []
    for stage, counts in enumerate(held.T):
        if stage:
            missing = counts.astype(np.int64).copy()
            following = np.full(num_columns, -1, dtype=np.int64)
            for d in np.flatnonzero(np.bincount(owner, minlength=len(counts))).tolist():
                kept = _whole_groups_first(np.flatnonzero(owner == d), group)[: counts[d]]
                following[kept] = d
                missing[d] -= len(kept)
            for is_near in (True, False):
                for d in order[missing[order] > 0].tolist():
                    free = np.flatnonzero(following < 0)
                    if is_near:
                        free = free[outer[owner[free]] == outer[d]]
                    taken = _whole_groups_first(free, group)[: missing[d]]
                    following[taken] = d
                    missing[d] -= len(taken)
            owner = following
        columns.append({d: [np.flatnonzero(owner == d).astype(np.int32)] for d in np.flatnonzero(counts).tolist()})
    return columns


def _whole_groups_first(columns: npt.NDArray[np.int64], group: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Columns of the groups of which most are here first, groups together."""
    _, inverse, sizes = np.unique(group[columns], return_inverse=True, return_counts=True)
    return columns[np.lexsort((columns, -sizes[inverse]))]


def _join(fragments: list[tuple[int, int]], row_size: int, rows: list[Row]) -> list[tuple[int, int]]:
    """Append rows made of (size, domain) fragments: the largest with the one that completes it, else with the largest
    that fit, the last one cut. Returns what makes no whole row.
    """
    left = sorted(fragments, reverse=True)
    while sum(size for size, _ in left) >= row_size:
        size, d = left.pop(0)
        row, missing = [(d, size)], row_size - size
        while missing:
            exact = next((k for k, (n, _) in enumerate(left) if n == missing), None)
            k = exact if exact is not None else next((k for k, (n, _) in enumerate(left) if n < missing), len(left) - 1)
            n, other = left.pop(k)
            row.append((other, min(n, missing)))
            if n > missing:
                left.append((n - missing, other))
                left.sort(reverse=True)
            missing -= min(n, missing)
        rows.append(row)
    return left
