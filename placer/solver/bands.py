"""Banded layouts: the grid of pipeline stages × columns cut into domains, tier by tier from the outside.

A job is a grid: stages down, columns (the ranks of a stage, in order) across. Rings run along rows, chains along
columns, so a domain wants a compact patch whose height balances the two. A band is a few neighbouring stages, filled
column by column: every domain that is dealt a run of it holds a patch with straight sides, whatever its capacity, and
patches of unequal domains still fit together. Each tier has its own band height: pods are dealt high bands, and within
each pod the leaves are dealt lower ones.

Example: 4 stages × 6 columns, band height 2, leaves of 5, 7 and 12: the first leaf takes columns 0–1 of stages 0–1 and
one cell more, the second continues from there, the third has stages 2–3.

The heights are chosen by coordinate descent on the evaluated objective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placer.problem import IntArray, Problem, evaluate
from placer.solver.counts import tile_order, whole_blocks
from placer.solver.pool import aligned_slots
from placer.solver.stop import Deadline
from placer.solver.work import LAYING_S_PER_RANK, evaluation_s

SWEEPS = 2


@dataclass(frozen=True)
class Band:
    """How one tier deals cells to its domains: ``height`` stages at a time, ``width`` columns of a stage at a time."""

    height: int
    width: int


class BandedLayout:
    """Lays a job on the given slots (every domain's together, first ones used) by one `Band` per tier but the root."""

    def __init__(self, problem: Problem, slots: IntArray) -> None:
        self._problem = problem
        self._slots = slots[: problem.world_size]
        self._stage = problem.mesh.coordinates["pp"].astype(np.int64)
        stage_ranks = problem.mesh.groups("pp").T
        by_tile = np.argsort(tile_order(problem)[stage_ranks[0]])
        self._column = np.empty(problem.world_size, dtype=np.int64)
        self._column[stage_ranks[:, by_tile]] = np.arange(problem.mesh.num_stage_ranks)
        # segments[t]: which tier-(t + 1) domain every used slot belongs to
        self._segments = problem.slot2domain[1:, self._slots]

    def lay(self, bands: Sequence[Band]) -> IntArray:
        """The placement for one band per tier, innermost first."""
        ranks = np.arange(self._problem.world_size)
        for band, segment in zip(reversed(bands), self._segments[::-1], strict=True):
            run = np.cumsum(np.diff(segment, prepend=segment[:1]) != 0)
            ranks = ranks[np.lexsort((self._key(band)[ranks], run))]
        rank2slot = np.empty(len(ranks), dtype=np.int32)
        rank2slot[ranks] = self._slots
        return rank2slot

    def _key(self, band: Band) -> npt.NDArray[np.int64]:
        num_columns = self._problem.mesh.num_stage_ranks
        block = self._stage // band.height * (num_columns // band.width + 1) + self._column // band.width
        return np.asarray((block * band.height + self._stage % band.height) * band.width + self._column % band.width)


def banded_placements(problem: Problem, slots: IntArray, deadline: Deadline) -> Iterator[IntArray]:
    """Ever better banded layouts on the given slots (every domain's together).

    Where the pool is larger than the job, domains may also leave a few slots unused so as to hold whole columns, whole
    cp groups or whole expert groups.
    """
    if problem.num_tiers < 2:
        return
    mesh = problem.mesh
    heights = sorted({h for h in range(1, mesh.pp + 1) if h <= 4 or mesh.pp % h == 0})
    widths = sorted({mesh.tp, mesh.tp * mesh.cp, mesh.ep * mesh.etp})
    widths = [w for w in widths if w % mesh.tp == 0 and mesh.num_stage_ranks % w == 0]
    best = np.inf
    slots = whole_blocks(problem, slots, mesh.tp)
    for aligned_to in widths:
        sizes = (mesh.tp, *(aligned_to for _ in range(problem.num_tiers - 2)))
        layout = BandedLayout(problem, aligned_slots(problem, slots, sizes, at_least=problem.world_size))
        bands = [Band(1, widths[-1])] * (problem.num_tiers - 1)
        lowest = np.inf
        for _ in range(SWEEPS):
            before = lowest
            for tier in reversed(range(len(bands))):
                for height in heights:
                    for width in widths:
                        if deadline.is_over:
                            return
                        trial = [*bands[:tier], Band(height, width), *bands[tier + 1 :]]
                        rank2slot = layout.lay(trial)
                        deadline.spend(evaluation_s(problem) + LAYING_S_PER_RANK * problem.world_size)
                        objective = evaluate(problem, rank2slot).objective
                        if objective < lowest * (1 - 1e-12):
                            lowest, bands = objective, trial
                        if objective < best * (1 - 1e-12):
                            best = objective
                            yield rank2slot
            if lowest >= before:
                break
