"""Bound B: every tier on its own, with a price for every stage.

Every rank of stage p sits in exactly one domain of a tier. Paying π_p for it turns that into a price, and

    bytes across the tier's boundaries ≥ R · Σ_p π_p + Σ_domains min over s ≤ capacity of g(s; π)

for **any** prices π (Lagrangian duality); the best prices come from cutting planes, one a capacity and iteration.
They start at the same price for all stages, the least share per rank of any set that fits: every g is ≥ 0 there, and
the bound is (ranks) × (least share per rank).

Example: 4 hosts of 8 GPUs, 32 ranks, the best 8 ranks pay 10 a host: no prices can make it more than 4 · 10.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placer.solver.bound.cutting_planes import Evaluation, fold, maximise, mirror
from placer.solver.bound.instance import DomainTree
from placer.solver.bound.knapsack import ROUNDING, DeadlineReachedError
from placer.solver.bound.subset_cost import SubsetCost
from placer.solver.stop import Deadline

FloatArray = npt.NDArray[np.float64]
MAX_EVALUATIONS = 60
FIRST_RADIUS = 0.25
"""Relative to the least share per rank: the start is a guess."""


class TierBound:
    """B of one tier: ``prices`` (P,) and the valid lower bound ``value`` of the bytes that cross it."""

    def __init__(self, tree: DomainTree, tier: int, subsets: SubsetCost) -> None:
        self.subsets = subsets
        self._unit = tree.tier_units[tier]
        sizes = tree.tier_sizes[tier]
        self._capacities = np.array(list(sizes), dtype=np.int64) // self._unit
        self._numbers = np.array(list(sizes.values()), dtype=np.float64)
        job = subsets.job
        self._num_stages = job.num_stages
        self._stage_ranks = len(job.stage_cost) - 1
        free = subsets.price(np.zeros(self._num_stages)).values[:: self._unit]
        share = max(0.0, float((free[1:] / (self._unit * np.arange(1, len(free)))).min()))
        largest = float(job.stage_cost.max()) + (job.chain + job.closing) * self._stage_ranks
        self.price_unit = share or largest / self._stage_ranks
        self.prices: FloatArray = np.full(self._num_stages, share)
        self.value = share * self._stage_ranks * self._num_stages

    def evaluate(self, half_prices: FloatArray) -> Evaluation:
        """The least g of every capacity, and its gradient in the prices of the first half."""
        priced = self.subsets.price(mirror(half_prices, self._num_stages))
        values = priced.values[:: self._unit]
        best = np.array([int(np.argmin(values[: capacity + 1])) for capacity in self._capacities])
        counts = {
            size: fold(-priced.counts(size * self._unit).astype(np.float64), self._num_stages)
            for size in set(best.tolist())
        }
        gradients = np.array([counts[size] for size in best.tolist()], dtype=np.float64)
        return Evaluation(values[best], gradients)

    def improve(self, deadline: Deadline) -> None:
        """Raise ``value`` by better prices, until they are best or the deadline comes."""
        unit = self.price_unit
        scale = unit * self._stage_ranks * self._num_stages

        def evaluate_scaled(x: FloatArray) -> Evaluation:
            found = self.evaluate(x * unit)
            return Evaluation(found.values / scale, found.gradients * (unit / scale))

        def keep(x: FloatArray, value: float) -> None:
            prices = mirror(x * unit, self._num_stages)
            safe = value * scale - ROUNDING * self._stage_ranks * float(np.abs(prices).sum())
            if safe > self.value:
                self.value, self.prices = safe, prices

        half = fold(np.full(self._num_stages, float(self._stage_ranks)), self._num_stages)
        try:
            maximise(
                evaluate_scaled,
                self.prices[: len(half)] / unit,
                linear=half * unit / scale,
                weights=self._numbers,
                deadline=deadline,
                radius=FIRST_RADIUS,
                max_evaluations=MAX_EVALUATIONS,
                on_value=keep,
            )
        except DeadlineReachedError:
            return
