"""Plans: how many units of each pipeline stage every domain holds, annealed; then laid out as a placement.

The counts of `placer.solver.bound.pattern_model` at any size. A unit is what one host runs, all of one stage (or of
a few neighbouring stages where that is cheaper inside the host). Moving units between domains changes the cost of two
domains per tier only, so millions of moves a second are priced. The laid-out plan keeps every ring contiguous: each
stage's ranks, in order, run through the domains in one common order of the tree.

Example: 16 stages of 96 units on leaves of 8: a plan gives a leaf 2 stages × 4 columns or 1 × 8, whichever the ratio of
ring bytes to chain bytes favours, and the layout puts equal columns of neighbouring stages side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from placer.problem import FloatArray, IntArray, Problem
from placer.solver.bound.instance import read_stages
from placer.solver.bound.stage_cost import compute_stage_cost
from placer.solver.counts import Counts, count_ranks, whole_blocks

LongArray = npt.NDArray[np.int64]
NEAR = 0.6  # share of the moves between domains of one parent: they price one level only


@dataclass(frozen=True)
class PlanModel:
    """What a plan costs. L levels of domains, finest first; P stages.

    - ``capacity`` (D,): units that every finest domain can hold; ``ancestor`` (L, D): its domain at every level
    - ``stage_cost`` (L, N + 1): cost of n units of one stage in a domain of that level, weight step included
    - ``chain_cost`` (L,): cost per unit that neighbouring stages differ by
    - ``tier``: the finest tier; ``unit``: ranks of a unit
    """

    capacity: LongArray
    ancestor: LongArray
    stage_cost: FloatArray
    chain_cost: FloatArray
    num_stages: int
    tier: int
    unit: int

    @property
    def scale(self) -> float:
        """A typical cost of a few units of one stage in a finest domain: the yardstick of temperatures."""
        return float(np.median(self.stage_cost[0][1:])) + float(self.chain_cost[0])

    def counts_of(self, problem: Problem, rank2slot: IntArray) -> LongArray | None:
        """The plan of a placement in units, or None when it cuts units or overfills a domain."""
        held = count_ranks(problem, rank2slot, self.tier).astype(np.int64)
        units = held // self.unit
        return units if (units * self.unit == held).all() and (units.sum(axis=1) <= self.capacity).all() else None

    def to_counts(self, units: LongArray) -> Counts:
        """Counts in ranks."""
        return Counts((units * self.unit).astype(np.int32), self.tier, self.unit)


def build_plan_model(problem: Problem, slots: IntArray, unit: int) -> PlanModel | None:
    """Model for units of ``unit`` ranks of one stage on the given slots; None when nothing is to be planned.

    The levels are the tiers that cost something and whose domains hold more than one unit.
    """
    if problem.mesh.num_stage_ranks % unit:
        return None
    slots = whole_blocks(problem, slots, unit)
    tiers = [
        t
        for t in range(problem.num_tiers - 1)
        if problem.num_domains[t] > 1
        and problem.weight_steps[t] > 0
        and np.bincount(problem.slot2domain[t][slots]).max() >= 2 * unit
    ]
    if not tiers:
        return None
    finest = tiers[0]
    stages = read_stages(problem)
    stage_cost = compute_stage_cost(stages)[::unit]
    steps = problem.weight_steps[tiers]
    num_domains = problem.num_domains[finest]
    ancestor = np.zeros((len(tiers), num_domains), dtype=np.int64)
    for level, tier in enumerate(tiers):
        ancestor[level, problem.slot2domain[finest]] = problem.slot2domain[tier]
    return PlanModel(
        np.bincount(problem.slot2domain[finest][slots], minlength=num_domains) // unit,
        ancestor,
        steps[:, None] * stage_cost[None, :],
        steps * (stages.chain_share * unit),
        problem.mesh.pp,
        finest,
        unit,
    )


@njit(cache=True)
def _shift(row, p, amount, stage_cost, chain_cost):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Add units of stage p to a domain's counts; what that costs."""
    before = row[p]
    after = before + amount
    delta = stage_cost[after] - stage_cost[before]
    if p > 0:
        delta += chain_cost * (abs(after - row[p - 1]) - abs(before - row[p - 1]))
    if p + 1 < len(row):
        delta += chain_cost * (abs(after - row[p + 1]) - abs(before - row[p + 1]))
    row[p] = after
    return delta


@njit(cache=True)
def _anneal_plan(  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    held, free, ancestor, siblings, first, number, stage_cost, chain_cost, best, state, num_steps, hot, cold, rng
):
    # held (L, D, P) counts at every level, the finest first; siblings: domains, those of one parent together, of which
    # number[d] from first[d] on share d's parent; state: current, lowest, step, steps
    num_levels, num_domains = ancestor.shape
    num_stages = held.shape[2]
    counts = held[0]
    current, lowest = state[0], state[1]
    for step in range(num_steps):
        temperature = hot * (cold / hot) ** ((state[2] + step) / state[3])
        a = int(rng.random() * num_domains)
        if rng.random() < NEAR:
            b = siblings[first[a] + int(rng.random() * number[a])]
        else:
            b = int(rng.random() * num_domains)
        p = int(rng.random() * num_stages)
        if a == b or counts[a, p] == 0:
            continue
        amount = counts[a, p] if rng.random() < 0.4 else 1 + int(rng.random() * counts[a, p])
        q, back = -1, 0
        if rng.random() < 0.5 or amount > free[b]:
            q = int(rng.random() * num_stages)
            if q == p or counts[b, q] == 0:
                if amount > free[b]:
                    amount = free[b]
                    if amount == 0:
                        continue
                q = -1
            else:
                back = counts[b, q] if rng.random() < 0.4 else 1 + int(rng.random() * counts[b, q])
                if amount - back > free[b] or back - amount > free[a]:
                    amount = min(amount, back)
                    back = amount
        delta = 0.0
        last = num_levels
        for level in range(num_levels):
            x, y = ancestor[level, a], ancestor[level, b]
            if x == y:
                last = level
                break
            per_stage, per_step = stage_cost[level], chain_cost[level]
            delta += _shift(held[level, x], p, -amount, per_stage, per_step)
            delta += _shift(held[level, y], p, amount, per_stage, per_step)
            if q >= 0:
                delta += _shift(held[level, x], q, back, per_stage, per_step)
                delta += _shift(held[level, y], q, -back, per_stage, per_step)
        if delta <= 0 or rng.random() < np.exp(-delta / temperature):
            free[a] += amount - back
            free[b] -= amount - back
            current += delta
            if current < lowest - 1e-9 * abs(lowest):
                lowest = current
                best[:] = counts
        else:
            for level in range(last):
                x, y = ancestor[level, a], ancestor[level, b]
                held[level, x, p] += amount
                held[level, y, p] -= amount
                if q >= 0:
                    held[level, x, q] -= back
                    held[level, y, q] += back
    state[0], state[1] = current, lowest
    state[2] += num_steps


class PlanAnnealing:
    """One annealing run on counts, in slices. ``hot`` and ``cold`` in units of the objective."""

    def __init__(
        self, model: PlanModel, counts: LongArray, *, hot: float, cold: float, num_steps: int, seed: int
    ) -> None:
        self._model = model
        num_levels = len(model.chain_cost)
        most = int(model.ancestor.max(initial=0)) + 1
        self._held = np.zeros((num_levels, most, model.num_stages), dtype=np.int64)
        for level in range(num_levels):
            np.add.at(self._held[level], model.ancestor[level], counts)
        chains = np.abs(np.diff(self._held, axis=2)).sum(axis=(1, 2))
        start = float(
            sum(model.stage_cost[level][self._held[level]].sum() for level in range(num_levels))
            + model.chain_cost @ chains
        )
        parent = model.ancestor[1] if num_levels > 1 else np.zeros_like(model.ancestor[0])
        self._siblings = np.argsort(parent, kind="stable")
        self._first = np.searchsorted(parent[self._siblings], parent)
        self._number = np.bincount(parent)[parent]
        self._free = model.capacity - counts.sum(axis=1)
        self.best = counts.astype(np.int64).copy()
        self._state = np.array([start, start, 0.0, float(max(1, num_steps))])
        self._temperatures = (hot, cold)
        self._rng = np.random.default_rng(seed)

    @property
    def lowest(self) -> float:
        """Cost of the best plan so far."""
        return float(self._state[1])

    @property
    def is_done(self) -> bool:
        """Whether all steps have run."""
        return bool(self._state[2] >= self._state[3])

    def run_slice(self, num_steps: int) -> None:
        """Run the next steps."""
        steps = int(min(num_steps, self._state[3] - self._state[2]))
        model = self._model
        _anneal_plan(
            self._held, self._free, model.ancestor, self._siblings, self._first, self._number, model.stage_cost,
            model.chain_cost, self.best, self._state, steps, *self._temperatures, self._rng,
        )  # fmt: skip
