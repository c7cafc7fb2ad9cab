"""Lower bounds of the objective: what no placement of the job on the pool can beat.

With weights that never fall outwards the objective is a sum over tier boundaries of (weight step) × (bytes that
cross it), and the bytes across a tier's boundaries are at least the sum of what every domain's set of ranks pays:

1. `stage_cost` h(n): what n ranks of one stage pay, 2. `subset_cost` g(s; π): what s ranks of the job pay under
stage prices, 3. `tier_bound` B: tiers one by one, 4. `tree_bound` D and D*: all tiers with sizes that agree.

Each step is a valid bound and none is below the one before; a caller sees them as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from placer.problem import Problem
from placer.solver.bound.instance import DomainTree, build_trees, read_stages
from placer.solver.bound.knapsack import ROUNDING, DeadlineReachedError
from placer.solver.bound.stage_cost import compute_stage_cost
from placer.solver.bound.subset_cost import JobCost, SubsetCost
from placer.solver.bound.tier_bound import TierBound
from placer.solver.bound.tree_bound import TreeBound
from placer.solver.stop import Deadline

__all__ = ["Bound", "lower_bound"]

SAFETY = 5e-10
"""Share of a bound given up for rounding; less than the 1e-9 within which an objective counts as proven."""
PROOF_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Bound:
    """``value``: no placement has a lower objective. ``method``: how that was proven, for people."""

    value: float
    method: str


def lower_bound(
    problem: Problem,
    *,
    deadline: Deadline,
    target: float | None = None,
    on_improve: Callable[[float], None] | None = None,
) -> Bound:
    """Bound the objective of every valid placement from below, cheap bounds first.

    ``target``: the objective of a known placement; the search stops once the bound proves it (within 1e-9).
    ``on_improve`` sees every better value. Returns within a fraction of a second of the deadline with the best value.
    A weight that falls outwards leaves nothing to claim (0).
    """
    if problem.num_tiers and np.any(problem.weight_steps < 0):
        return Bound(0.0, "no claim: a weight falls outwards")
    search = _Search(problem, deadline, target, on_improve)
    with suppress(DeadlineReachedError):
        search.run()
    return search.bound


class _Search:
    """The bounds of all choices of ranks per host; the least of them holds, so it is the one to raise next."""

    def __init__(
        self, problem: Problem, deadline: Deadline, target: float | None, on_improve: Callable[[float], None] | None
    ) -> None:
        self._problem = problem
        self._deadline = deadline
        self._goal = np.inf if target is None else target * (1 - PROOF_TOLERANCE)
        self._on_improve = on_improve
        self._choices: list[_Choice] = []
        self.bound = Bound(problem.fixed_cost * (1 - SAFETY), "bytes times the least weight")

    def run(self) -> None:
        stages = read_stages(self._problem)
        if stages.is_free or self._is_done:
            return
        trees = build_trees(self._problem)
        if not trees or not all(tree.tiers for tree in trees):
            return
        cost = JobCost(compute_stage_cost(stages), stages.mesh.pp, stages.chain_share, stages.closing_share)
        if not (cost.stage_cost.any() or cost.chain or cost.closing):
            return
        self._choices = [_Choice(tree, cost, self._problem.world_size) for tree in trees]
        while not self._is_done:
            weakest = min(self._choices, key=lambda choice: choice.value)
            if weakest.is_finished:
                return
            goal = (self._goal / (1 - SAFETY) - self._problem.fixed_cost) if np.isfinite(self._goal) else np.inf
            weakest.advance(self._deadline, goal, self._report)

    @property
    def _is_done(self) -> bool:
        return self.bound.value >= self._goal or self._deadline.is_over

    def _report(self) -> None:
        weakest = min(self._choices, key=lambda choice: choice.value)
        value = (self._problem.fixed_cost + weakest.value) * (1 - SAFETY)
        if value > self.bound.value:
            self.bound = Bound(value, weakest.method)
            if self._on_improve is not None:
                self._on_improve(value)


class _Choice:
    """The bounds for one number of ranks per host: first B, then D, then D*."""

    def __init__(self, tree: DomainTree, cost: JobCost, world_size: int) -> None:
        self._tree = tree
        self._cost = cost
        self._world_size = world_size
        largest = float(cost.stage_cost.max()) + (cost.chain + cost.closing) * (len(cost.stage_cost) - 1)
        self._noise = 10 * ROUNDING * sum(tree.steps.values()) * largest
        self._tier_bounds: dict[int, TierBound] = {}
        self.value = 0.0
        self.method = ""
        self.is_finished = False

    def advance(self, deadline: Deadline, goal: float, report: Callable[[], None]) -> None:
        """Take the next step: prices for the tiers one by one, or for the tree."""
        if not self._tier_bounds:
            self._bound_tiers(deadline, report)
        else:
            self._bound_tree(deadline, goal, report)

    def _raise(self, value: float, name: str, report: Callable[[], None]) -> None:
        value -= self._noise
        if value > self.value:
            tiers = len(self._tree.tiers)
            where = f"{tiers} tier{'s' if tiers > 1 else ''}"
            if self._tree.ranks_per_host is not None:
                where += f", {self._tree.ranks_per_host} ranks on every used host"
            self.value, self.method = value, name.format(where)
            report()

    def _bound_tiers(self, deadline: Deadline, report: Callable[[], None]) -> None:
        for t in self._tree.tiers:
            largest = min(max(self._tree.tier_sizes[t]), self._world_size)
            self._tier_bounds[t] = TierBound(self._tree, t, SubsetCost(self._cost, largest, deadline))
        for bound in self._tier_bounds.values():
            bound.improve(deadline)
            total = sum(self._tree.steps[t] * found.value for t, found in self._tier_bounds.items())
            self._raise(total, "stage prices on each of {} (B)", report)

    def _bound_tree(self, deadline: Deadline, goal: float, report: Callable[[], None]) -> None:
        bounds = self._tier_bounds
        tree_bound = TreeBound(self._tree, self._cost, {t: b.subsets for t, b in bounds.items()}, self._world_size)

        names = iter(["tree knapsack over {} (D)"])

        def on_improve() -> None:
            self._raise(tree_bound.value, next(names, "tree knapsack over {} with the best stage prices (D*)"), report)

        prices = {t: bound.prices for t, bound in bounds.items()}
        units = {t: bound.price_unit for t, bound in bounds.items()}
        tree_bound.improve(prices, units, deadline, goal=goal, on_improve=on_improve)
        self.is_finished = True
