"""Bound F: D with a price for every size of fragment, since the fragments of all domains must make whole rows.

D lets every domain cut the expert groups (rows) of a stage as it likes best: leaves of 52 ranks pay for fragments of
52, though nobody may hold the 12 that are missing. Let every fragment of k ranks earn μ_k in its domain, and let every
row pay for the fragments that it is made of. Whatever the prices, for one tier

    bytes across its boundaries ≥ Σ_domains g_μ(n_d) + (rows of the job) · min over partitions of ep of Σ μ_parts,

where g_μ is g with the stage cost h_μ(n) = min over compositions of n of price(composition) − Σ μ_fragments
(`fragments.CompositionCost`; whole rows earn nothing). Put in the place of g, it gives D with fragments.

The best prices come from cutting planes: one function a class of domains, and one for the rows. What the tiers inside a
domain pay is taken at their own best prices, what the tiers outside pay is left for the knapsack of D, which has the
last word. It is the dual of cutting stock, hence tight: no whole number is lost but those of domains.

Example: rows of 4 in racks that hold 3 ranks each. D knows that a rack holds a fragment of 3, at φ(3), a share of
φ(3)/3 a rank. But every 3 needs a 1: with μ_3 = −μ_1 a rank's share is (φ(3) + φ(1))/4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placer.solver.bound.cutting_planes import Evaluation, fold, maximise, mirror
from placer.solver.bound.fragments import CompositionCost
from placer.solver.bound.instance import DomainTree
from placer.solver.bound.knapsack import ROUNDING, DeadlineReachedError, convolve
from placer.solver.bound.subset_cost import JobCost, SubsetCost
from placer.solver.stop import Deadline
from placer.solver.work import fragment_table_s

FloatArray = npt.NDArray[np.float64]
MAX_EVALUATIONS = 150
FIRST_RADIUS = 0.25
"""Relative to the least share per rank, and to a tenth of what a fragment costs at most."""


class PricedRows:
    """Compositions at one vector of prices μ (ep − 1,), of fragments of 1 … ep − 1 ranks.

    ``stage_cost`` (N + 1,): h_μ(n). ``row_cost``: the least that a row pays for its fragments, and ``row_fragments``
    (ep − 1,) how many of each size it then has.
    """

    def __init__(self, compositions: CompositionCost, prices: FloatArray, max_count: int) -> None:
        self._row = compositions.row.copy()
        self._row[1:-1] -= prices
        self._size = compositions.row_size
        self._num_rows = min(compositions.num_rows, max_count)  # more of them are empty
        self._ring = compositions.column_ring
        self._powers: dict[tuple[int, int], list[FloatArray]] = {}
        self.stage_cost, self._least, self._most = self._price_counts(max_count, compositions.num_rows)
        self.stage_cost += compositions.rest[: max_count + 1]
        self.row_cost, self.row_fragments = self._make_row(prices)

    def _price_counts(self, max_count: int, num_rows: int) -> tuple[FloatArray, npt.NDArray[np.int64], list[int]]:
        """h_μ without the rest for 0 … ``max_count`` ranks, and the least and the largest row count that reach it.

        table[m, r, n]: least cost of n ranks in r rows of m … M ranks each, M growing.
        """
        lows = np.arange(max_count // num_rows + 1)
        table = np.full((len(lows), self._num_rows + 1, max_count + 1), np.inf)
        table[:, 0, 0] = 0.0
        best = np.full(max_count + 1, np.inf)
        least = np.zeros(max_count + 1, dtype=np.int64)
        most = np.zeros(max_count + 1, dtype=np.int64)
        for high in range(min(self._size, max_count) + 1):
            open_lows = lows[: high + 1]
            for r in range(1, self._num_rows + 1):
                rows = table[: len(open_lows), r, high:]
                before = table[: len(open_lows), r - 1, : max_count + 1 - high]
                np.minimum(rows, before + self._row[high], out=rows)
            costs = table[: len(open_lows), self._num_rows] + self._ring * (high - open_lows)[:, None]
            low = np.argmin(costs, axis=0)
            cost = costs[low, np.arange(max_count + 1)]
            is_better = cost < best
            best[is_better], least[is_better], most[is_better] = cost[is_better], low[is_better], high
        return best, least, most.tolist()

    def _make_row(self, prices: FloatArray) -> tuple[float, npt.NDArray[np.int64]]:
        earned = np.concatenate([prices, [0.0]])  # a row in one piece pays nothing
        paid = np.zeros(self._size + 1)
        last = np.zeros(self._size + 1, dtype=np.int64)
        for n in range(1, self._size + 1):
            costs = paid[n - 1 :: -1] + earned[:n] if n > 1 else earned[:1]
            last[n] = 1 + int(np.argmin(costs))
            paid[n] = costs[last[n] - 1]
        fragments = np.zeros(self._size + 1, dtype=np.int64)
        left = self._size
        while left:
            fragments[last[left]] += 1
            left -= int(last[left])
        return float(paid[-1]), fragments[1:-1]

    def fragments(self, count: int) -> npt.NDArray[np.int64]:
        """How many fragments of each size, (ep − 1,), a cheapest composition of ``count`` ranks has."""
        low, high = int(self._least[count]), self._most[count]
        contents = self._row[low : high + 1]
        if (low, high) not in self._powers:
            tables = [np.zeros(1)]  # entry i of table r: r rows with low · r + i ranks
            for _ in range(self._num_rows):
                tables.append(convolve(tables[-1], contents)[: len(self.stage_cost)])
            self._powers[low, high] = tables
        tables = self._powers[low, high]
        found = np.zeros(self._size + 1, dtype=np.int64)
        left = count - low * self._num_rows
        for r in range(self._num_rows, 0, -1):
            before = tables[r - 1]
            first = max(0, left - len(before) + 1)
            last = min(left, len(contents) - 1)
            more = first + int(np.argmin(contents[first : last + 1] + before[left - last : left - first + 1][::-1]))
            found[low + more] += 1
            left -= more
        return found[1:-1]


@dataclass(frozen=True)
class FragmentPrices:
    """Good prices of one tier: ``stage_prices`` (P,), ``subsets`` that hold g_μ, and what all rows of the job pay."""

    stage_prices: FloatArray
    subsets: SubsetCost
    rows_cost: float


class FragmentBound:
    """The prices of one tier whose domains' fragments are to make whole rows.

    ``inner_costs``: by sub-tree class of the tier, what the tiers inside pay at least by its size in units, in bytes of
    this tier.
    """

    def __init__(
        self,
        tree: DomainTree,
        tier: int,
        subsets: SubsetCost,
        compositions: CompositionCost,
        inner_costs: dict[int, FloatArray],
    ) -> None:
        self._job = subsets.job
        self._max_size = subsets.max_size
        self._max_count = min(subsets.max_size, len(self._job.stage_cost) - 1)
        self._compositions = compositions
        self._unit = tree.tier_units[tier]
        self._inner = list(inner_costs.values())
        numbers = np.bincount(tree.classes[tier], minlength=len(tree.subtrees))
        self._num_rows = compositions.num_rows * self._job.num_stages
        self._weights = np.array([*numbers[list(inner_costs)].tolist(), self._num_rows], dtype=np.float64)
        self._num_half = (self._job.num_stages + 1) // 2

    def price(self, x: FloatArray, deadline: Deadline) -> tuple[FloatArray, SubsetCost, PricedRows]:
        """Stage prices (P,), g and rows at a point: the prices of the first half of the stages, then μ."""
        costs = self._job.stage_cost
        deadline.spend(fragment_table_s(self._compositions.num_rows, self._compositions.row_size, self._max_count))
        rows = PricedRows(self._compositions, x[self._num_half :], self._max_count)
        stage_cost = np.full(len(costs), np.inf)  # larger counts fit no domain
        stage_cost[: self._max_count + 1] = rows.stage_cost
        job = JobCost(stage_cost, self._job.num_stages, self._job.chain, self._job.closing)
        return mirror(x[: self._num_half], self._job.num_stages), SubsetCost(job, self._max_size, deadline), rows

    def evaluate(self, x: FloatArray, deadline: Deadline) -> Evaluation:
        """What a domain of every class pays at least, and a row; with the gradients in the prices."""
        stage_prices, subsets, rows = self.price(x, deadline)
        priced = subsets.price(stage_prices)
        by_size = priced.values[:: self._unit]
        values, gradients = [], []
        used: dict[int, FloatArray] = {}
        for inner in self._inner:
            costs = inner[: len(by_size)] + by_size[: len(inner)]
            size = int(np.argmin(costs))
            values.append(float(costs[size]))
            if size not in used:
                counts = priced.counts(size * self._unit)
                fragments = np.sum([rows.fragments(n) for n in counts.tolist()], axis=0)
                used[size] = -np.concatenate([fold(counts.astype(np.float64), self._job.num_stages), fragments])
            gradients.append(used[size])
        values.append(rows.row_cost)
        gradients.append(np.concatenate([np.zeros(self._num_half), rows.row_fragments]))
        return Evaluation(np.array(values), np.array(gradients))

    def improve(self, stage_prices: FloatArray, price_unit: float, deadline: Deadline) -> FragmentPrices | None:
        """The best prices found from ``stage_prices`` on, or None where fragments cost nothing.

        ``price_unit``: about what a rank pays.
        """
        num_prices, num_stages = self._compositions.row_size - 1, self._job.num_stages
        fragment_unit = float(self._compositions.row.max()) / 10
        if not fragment_unit:
            return None
        units = np.concatenate([np.full(self._num_half, price_unit), np.full(num_prices, fragment_unit)])
        stage_ranks = len(self._job.stage_cost) - 1
        scale = price_unit * stage_ranks * num_stages
        half = fold(np.full(num_stages, float(stage_ranks)), num_stages)
        best: list[FloatArray] = []

        def evaluate_scaled(x: FloatArray) -> Evaluation:
            found = self.evaluate(x * units, deadline)
            return Evaluation(found.values / scale, found.gradients * (units / scale))

        start = np.concatenate([stage_prices[: self._num_half] / price_unit, np.zeros(num_prices)])
        try:
            maximise(
                evaluate_scaled,
                start,
                linear=np.concatenate([half, np.zeros(num_prices)]) * units / scale,
                weights=self._weights,
                deadline=deadline,
                radius=FIRST_RADIUS,
                max_evaluations=MAX_EVALUATIONS,
                on_value=lambda x, _: best.append(x),
            )
        except DeadlineReachedError:
            if not best:
                raise
        found, subsets, rows = self.price(best[-1] * units, deadline)
        rounding = ROUNDING * self._compositions.row_size * float(np.abs(best[-1] * units)[self._num_half :].max())
        return FragmentPrices(found, subsets, self._num_rows * (rows.row_cost - rounding))
