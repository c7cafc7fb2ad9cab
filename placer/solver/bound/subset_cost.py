"""g(s; π): the least that any s ranks of the job pay at a domain boundary, less what they earn by stage prices π.

    g(s; π) = min Σ_p h(n_p) + chain · Σ_p |n_p − n_{p+1}| + closing · |n_1 − n_P| − Σ_p π_p n_p   over Σ n_p = s

n_p ranks of stage p. Valid because the chain edges between two stages are a perfect matching, so at least
|n_p − n_{p+1}| of them have one end in the set. A dynamic program over stages with state (n_p, ranks used so far)
takes O(P·N·U): the step |n_p − n_{p+1}| is a two-pass distance transform. One run prices every size.

The closing edge joins the ends: the first stage's count is held in an interval, one program an interval, and the last
stage pays for its distance to the interval (exact where an interval is one number, as for none and all of a stage).

Large domains are priced on a lattice: n_p = q·m_p + r_p with −q/2 < r_p ≤ q/2. Then |n_p − n_{p+1}| ≥
q·|m_p − m_{p+1}| − |r_p| − |r_{p+1}|, so g(s) ≥ min over Δ of G((s − Δ)/q) + ρ(Δ) with G the program on multiples of q
and ρ(Δ) the least price of remainders that add up to Δ. Nothing is lost where a remainder (a split tp or expert
group) costs more than the chain edges it may save.

Example: 2 stages of 4 ranks, h = 6 for 1, 2 or 3 of them, chain 1, no prices: g(4) = 4 (a whole stage cuts 4
edges), less than g = 12 for two of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from placer.solver.bound.knapsack import check_deadline
from placer.solver.stop import Deadline
from placer.solver.work import subset_program_s

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
MAX_STATES = 1e6
"""States (stages × counts × sizes) of one program: some 15 ms and 8 MB. Larger domains go on a lattice."""
LOSSLESS_FACTOR = 20.0
LOSSLESS_MARGIN = 4.0
"""A lattice is taken to lose nothing if a remainder costs so many times more than the chain edges that it may save
(what it may earn by stage prices is of their order). It may then have `LOSSLESS_FACTOR` times more states."""
NUM_INTERVALS = 8
"""Intervals for the first stage's count when there is a closing edge and single numbers would be too many."""


@dataclass(frozen=True)
class JobCost:
    """What a set of ranks pays: ``stage_cost`` h (R + 1,), shares of a chain edge and of a closing edge."""

    stage_cost: FloatArray
    num_stages: int
    chain: float
    closing: float


class SubsetPrices:
    """g(s; π) for s = 0 … U at one vector of prices; ``values`` (U + 1,), a lower bound of g on a lattice."""

    def __init__(self, values: FloatArray, program: _Program, remainders: _Remainders | None) -> None:
        self.values = values
        self._program = program
        self._remainders = remainders

    def counts(self, size: int) -> IntArray:
        """Ranks of every stage (P,) in a cheapest set of that size."""
        if self._remainders is None:
            return self._program.counts(size)
        remainders = self._remainders
        coarse, rest = remainders.split(size, self._program.values)
        return self._program.counts(coarse) * remainders.lattice + remainders.counts(rest)

    @property
    def is_exact(self) -> bool:
        """Whether values are g itself, not less; only then can `patterns` be listed."""
        return self._remainders is None

    def patterns(self, limits: FloatArray, *, most: int) -> tuple[IntArray, FloatArray] | None:
        """All stage counts (K, P) whose price is at most ``limits[size]`` (U + 1,), and by how much less it is, (K,).

        None if there are more than ``most``.
        """
        assert self.is_exact, "patterns of a domain that is priced on a lattice"
        return self._program.patterns(limits, most=most)


class SubsetCost:
    """Prices sets of up to ``max_size`` ranks under changing stage prices."""

    def __init__(
        self, job: JobCost, max_size: int, deadline: Deadline | None = None, *, max_states: float = MAX_STATES
    ):
        self.job = job
        self.max_size = max_size
        self.deadline = deadline
        self.lattice = self._choose_lattice(max_states)
        num_counts = self._num_counts(self.lattice)
        self._costs = job.stage_cost[:: self.lattice][:num_counts]
        states = float(job.num_stages * num_counts * self._num_sizes(self.lattice))
        self._intervals = [(0, num_counts - 1)]
        if job.closing > 0 and job.num_stages > 2:
            self._intervals = _first_stage_intervals(num_counts, int(max(NUM_INTERVALS, max_states // states)))
        if self.lattice > 1:
            # least extra cost of a remainder, over all counts of a stage: depends on the remainder only
            low = -((self.lattice - 1) // 2)
            self._remainder_cost = np.array([self._extra_cost(r) for r in range(low, self.lattice // 2 + 1)])

    def price(self, stage_prices: FloatArray) -> SubsetPrices:
        """g at prices (P,)."""
        job, q = self.job, self.lattice
        program = _Program(
            self._costs,
            job.chain * q,
            job.closing * q,
            stage_prices * q,
            self._num_sizes(q),
            self._intervals,
            self.deadline,
        )
        if q == 1:
            return SubsetPrices(program.values, program, None)
        remainders = _Remainders(self._remainder_cost, job, stage_prices, q)
        return SubsetPrices(remainders.add_to(program.values, self.max_size), program, remainders)

    def _num_counts(self, q: int) -> int:
        return min(len(self.job.stage_cost) - 1, self.max_size + q // 2) // q + 1

    def _num_sizes(self, q: int) -> int:
        return min((self.max_size + self.job.num_stages * (q // 2)) // q, self._num_stage_lattice(q)) + 1

    def _num_stage_lattice(self, q: int) -> int:
        return self.job.num_stages * ((len(self.job.stage_cost) - 1) // q)

    def _extra_cost(self, rest: int, q: int | None = None) -> float:
        """min over m of h(q·m + rest) − h(q·m)."""
        q = q or self.lattice
        cost = self.job.stage_cost
        at = np.arange(0, len(cost), q)
        at = at[(at + rest >= 0) & (at + rest < len(cost))]
        return float((cost[at + rest] - cost[at]).min())

    def _choose_lattice(self, max_states: float) -> int:
        """1 if affordable; else the coarsest divisor of a stage on which nothing is lost, for which more is affordable;
        else the divisor whose remainders cost most beyond the chain edges they save.
        """
        num_cells = len(self.job.stage_cost) - 1
        states = {
            q: self.job.num_stages * self._num_counts(q) * float(self._num_sizes(q))
            for q in range(1, num_cells + 1)
            if num_cells % q == 0
        }
        if states[1] <= max_states:
            return 1

        saved = 2 * self.job.chain + (self.job.closing if self.job.num_stages > 2 else 0.0)

        def margin(q: int) -> float:
            """Least cost of a remainder per rank, beyond the chain edges that it may save."""
            rests = [r for r in range(-((q - 1) // 2), q // 2 + 1) if r]
            return min(self._extra_cost(r, q) / abs(r) for r in rests) - saved

        margins = {q: margin(q) for q, number in states.items() if number <= LOSSLESS_FACTOR * max_states and q > 1}
        lossless = [q for q, value in margins.items() if value > LOSSLESS_MARGIN * saved]
        if lossless:
            return max(lossless)
        affordable = [q for q in margins if states[q] <= max_states]
        return max(affordable, key=lambda q: (margins[q], -q)) if affordable else num_cells


def _first_stage_intervals(num_counts: int, number: int) -> list[tuple[int, int]]:
    if num_counts <= number:
        return [(n, n) for n in range(num_counts)]
    edges = np.unique(np.linspace(1, num_counts - 1, number - 1).astype(int)).tolist()
    inner = [(low, high - 1) for low, high in pairwise(edges)]
    return [(0, 0), *inner, (num_counts - 1, num_counts - 1)]


class _Program:
    """The dynamic program over stages. Tables: [interval, count of this stage, ranks so far] to least cost."""

    def __init__(
        self,
        costs: FloatArray,
        chain: float,
        closing: float,
        prices: FloatArray,
        num_sizes: int,
        intervals: list[tuple[int, int]],
        deadline: Deadline | None,
    ) -> None:
        num_counts = len(costs)
        counts = np.arange(num_counts)
        self._chain, self._closing = chain, closing
        self._costs, self._prices = costs, prices
        self._counts = counts
        first = np.full((len(intervals), num_counts, num_sizes), np.inf)
        for i, (low, high) in enumerate(intervals):
            inside = np.arange(low, min(high, num_sizes - 1) + 1)
            first[i, inside, inside] = costs[inside] - prices[0] * inside
        self._tables = [first]
        slope = (chain * counts)[:, None]
        # rows of the buffer end in num_counts infinities: reading row n from column −n on shifts it by n
        width = num_sizes + num_counts
        buffer = np.full((len(intervals), num_counts, width), np.inf)
        near = buffer[:, :, :num_sizes]
        stride = buffer.strides
        shifted = as_strided(buffer, first.shape, (stride[0], stride[1] - stride[2], stride[2]))
        if deadline is not None:
            deadline.spend(subset_program_s(first.size * len(prices)))
        for price in prices[1:].tolist():
            check_deadline(deadline)
            table = self._tables[-1]
            below = np.minimum.accumulate(table - slope, axis=1)
            below += slope
            above = np.minimum.accumulate((table + slope)[:, ::-1], axis=1)[:, ::-1]
            np.subtract(above, slope, out=near)
            np.minimum(near, below, out=near)
            self._tables.append(shifted + (costs - price * counts)[:, None])
        lows, highs = np.array(intervals).T
        gap = np.maximum(0, np.maximum(lows[:, None] - counts, counts - highs[:, None]))
        self._last = self._tables[-1] + (closing * gap)[:, :, None] if closing else self._tables[-1]
        self.values: FloatArray = self._last.min(axis=(0, 1))

    def counts(self, size: int) -> IntArray:
        interval, n = np.unravel_index(int(np.argmin(self._last[:, :, size])), self._last.shape[:2])
        found = np.zeros(len(self._tables), dtype=np.int64)
        for p in range(len(self._tables) - 1, -1, -1):
            found[p] = n
            size -= int(n)
            if p:
                before = self._tables[p - 1][interval, :, size] + self._chain * np.abs(self._counts - n)
                n = np.argmin(before)
        return found

    def patterns(self, limits: FloatArray, *, most: int) -> tuple[IntArray, FloatArray] | None:
        """Counts from the last stage to the first, each kept while the cheapest way to go on stays in the limit."""
        allowed = np.full(self._last.shape[2], -np.inf)
        allowed[: len(limits)] = limits[: len(allowed)]
        known = np.isfinite(allowed)
        allowed[known] += 1e-12 * np.abs(allowed[known])  # rounding of prices
        interval, last, left = np.nonzero(self._last <= allowed)
        if len(last) > most:
            return None
        limit = allowed[left]
        found = last[:, None]
        left = left - last
        paid = self._costs[last] - self._prices[-1] * last
        closing = self._last[interval, last, left + last] - self._tables[-1][interval, last, left + last]
        for p in range(len(self._tables) - 2, -1, -1):
            parts = []
            for n in self._counts.tolist():
                before = np.full(len(left), np.inf)
                fits = left >= n
                before[fits] = self._tables[p][interval[fits], n, left[fits]]
                step = self._chain * np.abs(found[:, 0] - n) + paid
                parts.append((np.flatnonzero(before + step + closing <= limit), n, step))
            if sum(len(kept) for kept, _, _ in parts) > most:
                return None
            chosen = np.concatenate([kept for kept, _, _ in parts])
            counts = np.repeat([n for _, n, _ in parts], [len(kept) for kept, _, _ in parts])
            paid = np.concatenate([step[kept] for kept, _, step in parts])
            paid = paid + self._costs[counts] - self._prices[p] * counts
            found = np.concatenate([counts[:, None], found[chosen]], axis=1)
            left, interval, limit, closing = left[chosen] - counts, interval[chosen], limit[chosen], closing[chosen]
        room = limit - paid - self._closing * np.abs(found[:, 0] - found[:, -1])
        return found[room >= 0], room[room >= 0]


class _Remainders:
    """ρ(Δ): the least price of stage remainders r_p that add up to Δ."""

    def __init__(self, extra_cost: FloatArray, job: JobCost, prices: FloatArray, lattice: int) -> None:
        self.lattice = lattice
        self._low = -((lattice - 1) // 2)
        rests = np.arange(self._low, lattice // 2 + 1)
        num_stages = job.num_stages
        self._own = []
        for p in range(num_stages):
            at_end = (p == 0) + (p == num_stages - 1)
            saved = job.chain * (2 - at_end) + job.closing * at_end
            own = extra_cost - saved * np.abs(rests) - prices[p] * rests
            own[-self._low] = 0.0
            self._own.append(own)
        self._sums = [self._own[0]]
        for own in self._own[1:]:
            before = self._sums[-1]
            after = np.full(len(before) + lattice - 1, np.inf)
            for i, value in enumerate(own.tolist()):
                part = after[i : i + len(before)]
                np.minimum(part, before + value, out=part)
            self._sums.append(after)

    @property
    def _least(self) -> int:
        return self._low * len(self._own)

    def add_to(self, coarse: FloatArray, max_size: int) -> FloatArray:
        """min over Δ of coarse[(s − Δ)/q] + ρ(Δ) for s = 0 … max_size."""
        q = self.lattice
        values = np.full(max_size + 1, np.inf)
        for i, price in enumerate(self._sums[-1].tolist()):
            rest = self._least + i
            first = max(0, -(rest // q))  # least coarse size with q·coarse + rest ≥ 0
            last = min(len(coarse) - 1, (max_size - rest) // q)
            if first <= last:
                target = values[q * first + rest : q * last + rest + 1 : q]
                np.minimum(target, coarse[first : last + 1] + price, out=target)
        return values

    def split(self, size: int, coarse: FloatArray) -> tuple[int, int]:
        """A cheapest (coarse size, Δ) with q·coarse + Δ = size."""
        rests = np.arange(len(self._sums[-1])) + self._least
        coarse_size, odd = np.divmod(size - rests, self.lattice)
        usable = np.flatnonzero((odd == 0) & (coarse_size >= 0) & (coarse_size < len(coarse)))
        best = usable[np.argmin(coarse[coarse_size[usable]] + self._sums[-1][usable])]
        return int(coarse_size[best]), int(rests[best])

    def counts(self, rest: int) -> IntArray:
        """Remainders of every stage that add up to ``rest`` at the least price."""
        found = np.zeros(len(self._own), dtype=np.int64)
        for p in range(len(self._own) - 1, 0, -1):
            own, before = self._own[p], self._sums[p - 1]
            index = rest - self._low * (p + 1) - np.arange(len(own))  # in ``before``, for every choice here
            usable = np.flatnonzero((index >= 0) & (index < len(before)))
            i = usable[np.argmin(own[usable] + before[index[usable]])]
            found[p] = self._low + int(i)
            rest -= int(found[p])
        found[0] = rest
        return found
